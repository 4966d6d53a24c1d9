// Which operations are ordered, by what the program asked for and not by how it happened to go this time.
//
// Each stream numbers its operations. A Clock says, for each stream, up to which operation everything is known to be
// over: an operation's clock joins its stream's, that of every event its stream waited for, and that of the host thread
// which enqueued it, who learns by querying events and streams. Two operations that touch the same bytes, at least one of them
// to write, must be ordered so; if not, the program has a race, even if it went well (Lamport 1978; Mattern 1989).
#pragma once
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace fake {

class Clock {
  public:
    void join(const Clock& other) {
        for (const auto& [stream, count] : other.counts_) advance(stream, count);
    }
    void advance(unsigned stream, uint64_t count) {
        uint64_t& mine = counts_[stream];
        if (mine < count) mine = count;
    }
    bool knows(unsigned stream, uint64_t count) const {
        auto found = counts_.find(stream);
        return found != counts_.end() && found->second >= count;
    }

  private:
    std::map<unsigned, uint64_t> counts_;
};

// Bytes that an operation touches: of a device's memory or of pinned memory, whose addresses don't meet.
struct Range {
    uint64_t start;
    uint64_t size;
    bool writes;

    bool meets(const Range& other) const { return start < other.start + other.size && other.start < start + size; }
};

// What an operation touched, and where it stands.
struct Access {
    unsigned stream;
    uint64_t number;  // of the operation on its stream
    uint64_t op;      // its number in the journal
    Range range;
};

// The latest accesses of one context.
class Accesses {
  public:
    // Notes those of an operation that begins with `clock`; the earlier operation with which it races, if any.
    std::optional<uint64_t> note(unsigned stream, uint64_t number, uint64_t op, const Clock& clock, const std::vector<Range>& ranges) {
        std::optional<uint64_t> races;
        for (const Range& range : ranges)
            for (const Access& earlier : latest_)
                if (earlier.range.meets(range) && (earlier.range.writes || range.writes) && earlier.stream != stream &&
                    !clock.knows(earlier.stream, earlier.number))
                    races = earlier.op;
        for (const Range& range : ranges) latest_.push_back({stream, number, op, range});
        while (latest_.size() > KEPT) latest_.pop_front();
        return races;
    }

    // That memory was given back: whoever gets those addresses next has nothing to do with it.
    void forget(uint64_t start, uint64_t size) {
        const Range gone{start, size, true};
        std::erase_if(latest_, [&](const Access& access) { return access.range.meets(gone); });
    }

  private:
    // About eight batches' worth: what lies further back is over, or far more than a race has gone wrong.
    static constexpr size_t KEPT = 128;
    std::deque<Access> latest_;
};

}  // namespace fake
