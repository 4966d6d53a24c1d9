#include "memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <new>

#include "settings.h"

namespace fake {

Mapping::Mapping(size_t size) : size_(size) {
    const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    const size_t rounded = (size + 15) / 16 * 16;
    const size_t pages = (rounded + page - 1) / page * page;
    whole_size_ = pages + 2 * page;
    whole_ = mmap(nullptr, whole_size_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (whole_ == MAP_FAILED) throw std::bad_alloc();
    unsigned char* first = static_cast<unsigned char*>(whole_) + page;
    if (mprotect(first, pages, PROT_READ | PROT_WRITE) != 0) {
        munmap(whole_, whole_size_);
        throw std::bad_alloc();
    }
    data_ = first + pages - rounded;
    if (!settings().light) std::memset(data_, 0xCD, size_);
}

Mapping::~Mapping() { munmap(whole_, whole_size_); }

uint64_t Space::add(std::unique_ptr<Mapping> mapping, std::optional<uint64_t> address) {
    const uint64_t at = address.value_or(reinterpret_cast<uint64_t>(mapping->data()));
    allocations_.emplace(at, std::move(mapping));
    return at;
}

unsigned char* Space::find(uint64_t address, size_t size) const {
    auto after = allocations_.upper_bound(address);
    if (after == allocations_.begin()) return nullptr;
    const auto& [start, mapping] = *--after;
    const uint64_t offset = address - start;
    if (offset > mapping->size() || size > mapping->size() - offset) return nullptr;
    return mapping->data() + offset;
}

size_t Space::room(uint64_t address) const {
    auto after = allocations_.upper_bound(address);
    if (after == allocations_.begin()) return 0;
    const auto& [start, mapping] = *--after;
    const uint64_t offset = address - start;
    return offset < mapping->size() ? mapping->size() - offset : 0;
}

std::optional<size_t> Space::size_of(uint64_t address) const {
    auto found = allocations_.find(address);
    if (found == allocations_.end()) return {};
    return found->second->size();
}

size_t Space::bytes() const {
    size_t sum = 0;
    for (const auto& [address, mapping] : allocations_) sum += mapping->size();
    return sum;
}

uint64_t fingerprint(const unsigned char* bytes, size_t size) {
    // Eight bytes a step, each multiplied and rotated in: fast, and any single change shows.
    uint64_t state = 0x9E3779B97F4A7C15ull ^ size;
    for (; size >= 8; bytes += 8, size -= 8) {
        uint64_t word;
        std::memcpy(&word, bytes, 8);
        state = (state ^ word) * 0xBF58476D1CE4E5B9ull;
        state = state << 29 | state >> 35;
    }
    for (; size > 0; bytes++, size--) state = (state ^ *bytes) * 0x100000001B3ull;
    return state;
}

}  // namespace fake
