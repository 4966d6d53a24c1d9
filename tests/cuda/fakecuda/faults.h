// What is to go wrong, and when: the commands of tests, and the questions that the driver asks at every call and before
// every operation. Guarded by the driver's lock.
//
// Commands come from the environment when the library is loaded (FAKE_CUDA_FAULTS, separated by `;`) and, while the
// program runs, over a Unix socket (FAKE_CUDA_CONTROL), one a line, each answered by `ok` or `error: …` once it holds.
// DEVICE is a number or `*`. OPERATION is what a stream runs: kernel h2d d2h memset record wait hostfunc.
//
//   fail DEVICE FUNCTION CODE [NTH [TIMES]]    the NTH call (default: the next) and TIMES (1; 0: all) from there return
//                                              CODE; nothing else happens. Calls without a device are device -1
//   fail DEVICE OPERATION CODE [NTH [TIMES]]   the same for operations; their context dies of it
//   hang DEVICE [MS]                           the next kernel does not end before MS have passed, or it is released
//   release DEVICE                             whatever hangs goes on
//   slow DEVICE OPERATION US                   every such operation takes US longer, the one that runs included; 0 ends it
//   mute DEVICE [TIMES]                        the next TIMES host functions are not called
//   lose DEVICE [CODE]                         the device is gone: every call says CODE (999), whatever runs is cut off
//   restore DEVICE                             it is back, for new contexts
//   memory DEVICE BYTES                        it has that much memory
//   clear                                      nothing is to go wrong any more
#pragma once
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "abi.h"

namespace fake {

// What a stream runs.
enum class Kind { kernel, h2d, d2h, memset, record, wait, hostfunc };
const char* name_of(Kind kind);

// Faults of one device or of all of them (ALL).
class Faults {
  public:
    static constexpr int ALL = -2;

    // Obeys a command; what is wrong with it, or nothing. Commands about the state of a device (`lose`, `restore`, `memory`)
    // are passed on to `devices`.
    struct Devices {
        virtual bool exists(int device) = 0;
        virtual void lose(int device, CUresult code) = 0;
        virtual void restore(int device) = 0;
        virtual void memory(int device, size_t bytes) = 0;

      protected:
        ~Devices() = default;
    };
    std::optional<std::string> obey(const std::string& command, Devices& devices);

    // The code with which a call of `function` is to fail, or success.
    CUresult on_call(int device, const char* function);
    // The code with which an operation is to fail, or success.
    CUresult on_operation(int device, Kind kind);
    // How much longer an operation is to take.
    std::chrono::microseconds slowness(int device, Kind kind) const;
    // Whether this host function is to be left out.
    bool muted(int device);

    // The hang that a kernel which begins now is caught in, if any: waits for its end (or until `is_cut_off`).
    void hang(int device, std::unique_lock<std::mutex>& lock, std::condition_variable& progress, const auto& is_cut_off) {
        auto armed = take_hang(device);
        if (!armed) return;
        auto over = [&] { return armed->released_by != releases_[device] || is_cut_off(); };
        if (armed->until)
            progress.wait_until(lock, *armed->until, over);
        else
            progress.wait(lock, over);
    }

  private:
    struct Failure {
        int device;
        std::string what;
        CUresult code;
        uint64_t skip;
        uint64_t times;  // 0: for good
    };
    struct Hang {
        std::optional<std::chrono::steady_clock::time_point> until;
        uint64_t released_by;
    };
    struct Armed {
        int device;
        std::optional<std::chrono::milliseconds> span;
    };
    struct Mute {
        int device;
        uint64_t times;
    };

    std::optional<Hang> take_hang(int device);
    CUresult fail(int device, const std::string& what);

    std::vector<Failure> failures_;
    std::vector<Armed> hangs_;
    std::vector<Mute> mutes_;
    std::map<std::pair<int, std::string>, std::chrono::microseconds> slow_;
    std::map<int, uint64_t> releases_;
};

}  // namespace fake
