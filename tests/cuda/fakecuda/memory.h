// Device memory and pinned host memory, each in a world of its own.
//
// A device address is no address of this process: it lies where no pointer can lie (above the 47 bits of user space), so
// that host code that dereferences one ends there and then, and never does an address come back after a free. Behind it is a
// mapping of its own with a page at each end that can't be touched, at which a kernel that leaves its buffer ends likewise.
// Pinned memory has such pages too. Both are filled with 0xCD when allocated and unmapped when freed.
#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "abi.h"

namespace fake {

// A private mapping between two pages that can't be touched; its end is 16 bytes aligned and lies at the second one.
class Mapping {
  public:
    explicit Mapping(size_t size);
    ~Mapping();
    Mapping(const Mapping&) = delete;
    Mapping& operator=(const Mapping&) = delete;

    unsigned char* data() const { return data_; }
    size_t size() const { return size_; }

  private:
    void* whole_;
    size_t whole_size_;
    unsigned char* data_;
    size_t size_;
};

// The allocations of one context: device memory by device address, or pinned memory by host address.
class Space {
  public:
    // Reserves `size` bytes at `address`, or where they happen to lie for pinned memory; the address.
    uint64_t add(std::unique_ptr<Mapping> mapping, std::optional<uint64_t> address);
    // The bytes behind [address, address + size), if they lie in one living allocation.
    unsigned char* find(uint64_t address, size_t size) const;
    // How many bytes there are from `address` to the end of its allocation; 0 if it lies in none.
    size_t room(uint64_t address) const;
    // The size of the allocation that starts at `address`, if there is one.
    std::optional<size_t> size_of(uint64_t address) const;
    void remove(uint64_t address) { allocations_.erase(address); }
    size_t count() const { return allocations_.size(); }
    size_t bytes() const;
    void clear() { allocations_.clear(); }

  private:
    std::map<uint64_t, std::unique_ptr<Mapping>> allocations_;
};

// Device addresses, each given once: the device's number stands in them, and between two allocations lies a gap.
class Addresses {
  public:
    explicit Addresses(int device) : next_((0xDDull << 56) | (static_cast<uint64_t>(device) << 44) | 0x1000) {}
    uint64_t take(size_t size) {
        const uint64_t address = next_;
        next_ += (size + 0xFFF) / 0x1000 * 0x1000 + 0x1000;
        return address;
    }

  private:
    uint64_t next_;
};

// What tells two contents of some memory apart.
uint64_t fingerprint(const unsigned char* bytes, size_t size);

}  // namespace fake
