// What happened, in order: one JSON object a line, written at once, so that it is whole even if the process is killed.
//
// The tests read it (`tests/cuda/journal.rs`). Every line has `at_ns` (monotonic) and `event`; the rest depends on it:
//   enqueue begin end dropped   an operation on a stream: device context stream op kind, and what it touches
//   create destroy              a context, stream, event, module, allocation or pinned buffer
//   call                        a call of the API that failed: function code
//   fault                       something that was injected
//   sticky                      a context died: code
//   violation                   the program under test did what no correct program does: text
#pragma once
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>

namespace fake {

// A member of a journal line; makes JSON of numbers and texts.
struct Member {
    Member(std::string_view name, uint64_t value) : name(name), json(std::to_string(value)) {}
    Member(std::string_view name, int64_t value) : name(name), json(std::to_string(value)) {}
    Member(std::string_view name, unsigned value) : name(name), json(std::to_string(value)) {}
    Member(std::string_view name, int value) : name(name), json(std::to_string(value)) {}
    Member(std::string_view name, unsigned long long value) : name(name), json(std::to_string(value)) {}
    Member(std::string_view name, std::string_view text);
    Member(std::string_view name, const char* text) : Member(name, std::string_view(text)) {}
    Member(std::string_view name, const std::string& text) : Member(name, std::string_view(text)) {}

    std::string_view name;
    std::string json;
};

// Writes a line, if the environment names a file (FAKE_CUDA_JOURNAL). Lines of several threads don't mix, and their
// times ascend.
void journal(std::string_view event, std::initializer_list<Member> members);

// The program under test broke a rule: written to the journal and to standard error.
void violation(int device, const std::string& text);

// Nanoseconds on the monotonic clock.
uint64_t now_ns();

}  // namespace fake
