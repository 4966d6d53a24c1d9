#include "journal.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <mutex>

namespace fake {

namespace {

std::string quoted(std::string_view text) {
    std::string json = "\"";
    for (unsigned char c : text) {
        if (c == '"' || c == '\\') {
            json += '\\';
            json += static_cast<char>(c);
        } else if (c < 0x20) {
            char escaped[8];
            std::snprintf(escaped, sizeof escaped, "\\u%04x", c);
            json += escaped;
        } else {
            json += static_cast<char>(c);
        }
    }
    return json + '"';
}

int open_journal() {
    const char* path = std::getenv("FAKE_CUDA_JOURNAL");
    return path ? open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644) : -1;
}

}  // namespace

Member::Member(std::string_view name, std::string_view text) : name(name), json(quoted(text)) {}

uint64_t now_ns() {
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000u + static_cast<uint64_t>(now.tv_nsec);
}

void journal(std::string_view event, std::initializer_list<Member> members) {
    static const int file = open_journal();
    if (file < 0) return;
    std::string rest = ",\"event\":" + quoted(event);
    for (const Member& member : members) rest += "," + quoted(member.name) + ":" + member.json;
    rest += "}\n";
    // Never destroyed: streams may write while the process ends.
    static std::mutex& mutex = *new std::mutex;
    std::lock_guard lock(mutex);
    std::string line = "{\"at_ns\":" + std::to_string(now_ns()) + rest;
    if (write(file, line.data(), line.size()) < 0) std::perror("fakecuda: the journal can't be written");
}

void violation(int device, const std::string& text) {
    std::fprintf(stderr, "fakecuda: VIOLATION on device %d: %s\n", device, text.c_str());
    journal("violation", {{"device", device}, {"text", text}});
}

}  // namespace fake
