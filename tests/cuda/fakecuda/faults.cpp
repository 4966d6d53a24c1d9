#include "faults.h"

#include <algorithm>
#include <sstream>

#include "journal.h"

namespace fake {

namespace {

bool concerns(int rule, int device) { return rule == Faults::ALL || rule == device; }

// The words of a command.
class Words {
  public:
    explicit Words(const std::string& command) : rest_(command) {}

    std::string word() {
        std::string next;
        rest_ >> next;
        return next;
    }

    uint64_t number(uint64_t otherwise) {
        std::string text = word();
        if (text.empty()) return otherwise;
        if (!std::all_of(text.begin(), text.end(), [](unsigned char c) { return c >= '0' && c <= '9'; })) wrong_ = text;
        return wrong_.empty() ? std::stoull(text) : otherwise;
    }

    int device() {
        std::string text = word();
        if (text == "*") return Faults::ALL;
        if (text == "-1") return -1;
        if (text.empty() || text.size() > 4 || !std::all_of(text.begin(), text.end(), ::isdigit)) {
            wrong_ = text.empty() ? "(no device)" : text;
            return -1;
        }
        return std::stoi(text);
    }

    // What could not be read, if anything.
    const std::string& wrong() const { return wrong_; }
    bool left() { return !word().empty(); }

  private:
    std::istringstream rest_;
    std::string wrong_;
};

}  // namespace

const char* name_of(Kind kind) {
    switch (kind) {
        case Kind::kernel: return "kernel";
        case Kind::h2d: return "h2d";
        case Kind::d2h: return "d2h";
        case Kind::memset: return "memset";
        case Kind::record: return "record";
        case Kind::wait: return "wait";
        case Kind::hostfunc: return "hostfunc";
    }
    return "?";
}

std::optional<std::string> Faults::obey(const std::string& command, Devices& devices) {
    Words words(command);
    const std::string verb = words.word();
    if (verb.empty()) return {};
    if (verb == "clear") {
        failures_.clear();
        hangs_.clear();
        mutes_.clear();
        slow_.clear();
        return {};
    }
    const int device = words.device();
    const bool calls_without_device = verb == "fail" && device == -1;
    if (!words.wrong().empty() || !(device == ALL || calls_without_device || devices.exists(device)))
        return "no such device in: " + command;
    if (verb == "fail") {
        Failure failure{device, words.word(), static_cast<CUresult>(words.number(CUDA_ERROR_UNKNOWN)), 0, 1};
        failure.skip = words.number(1) - 1;
        failure.times = words.number(1);
        failures_.push_back(failure);
    } else if (verb == "hang") {
        const uint64_t ms = words.number(0);
        hangs_.push_back({device, ms ? std::optional(std::chrono::milliseconds(ms)) : std::nullopt});
    } else if (verb == "release") {
        for (auto& [of, count] : releases_)
            if (concerns(device, of)) count++;
        std::erase_if(hangs_, [&](const Armed& armed) { return concerns(device, armed.device); });
    } else if (verb == "slow") {
        const std::string what = words.word();
        slow_[{device, what}] = std::chrono::microseconds(words.number(0));
    } else if (verb == "mute") {
        mutes_.push_back({device, words.number(1)});
    } else if (verb == "lose") {
        devices.lose(device, static_cast<CUresult>(words.number(CUDA_ERROR_UNKNOWN)));
    } else if (verb == "restore") {
        devices.restore(device);
    } else if (verb == "memory") {
        devices.memory(device, words.number(0));
    } else {
        return "unknown command: " + command;
    }
    if (!words.wrong().empty()) return "not a number: " + words.wrong();
    if (words.left()) return "one word too many in: " + command;
    journal("fault", {{"device", device}, {"text", command}});
    return {};
}

CUresult Faults::fail(int device, const std::string& what) {
    for (auto failure = failures_.begin(); failure != failures_.end(); ++failure) {
        if (!concerns(failure->device, device) || failure->what != what) continue;
        if (failure->skip > 0) {
            failure->skip--;
            continue;
        }
        const CUresult code = failure->code;
        if (failure->times > 0 && --failure->times == 0) failures_.erase(failure);
        journal("fault", {{"device", device}, {"text", what + " fails"}, {"code", code}});
        return code;
    }
    return CUDA_SUCCESS;
}

CUresult Faults::on_call(int device, const char* function) { return fail(device, function); }

CUresult Faults::on_operation(int device, Kind kind) { return fail(device, name_of(kind)); }

std::chrono::microseconds Faults::slowness(int device, Kind kind) const {
    for (int rule : {device, ALL})
        if (auto found = slow_.find({rule, name_of(kind)}); found != slow_.end()) return found->second;
    return std::chrono::microseconds(0);
}

bool Faults::muted(int device) {
    auto mute = std::find_if(mutes_.begin(), mutes_.end(), [&](const Mute& m) { return concerns(m.device, device); });
    if (mute == mutes_.end()) return false;
    if (--mute->times == 0) mutes_.erase(mute);
    journal("fault", {{"device", device}, {"text", "a host function is not called"}});
    return true;
}

std::optional<Faults::Hang> Faults::take_hang(int device) {
    auto armed = std::find_if(hangs_.begin(), hangs_.end(), [&](const Armed& a) { return concerns(a.device, device); });
    if (armed == hangs_.end()) return {};
    Hang hang{{}, releases_[device]};
    if (armed->span) hang.until = std::chrono::steady_clock::now() + *armed->span;
    hangs_.erase(armed);
    journal("fault", {{"device", device}, {"text", "a kernel hangs"}});
    return hang;
}

}  // namespace fake
