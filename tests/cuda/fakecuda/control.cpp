#include "control.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>

#include "driver.h"

namespace fake {

namespace {

std::string obey(const std::string& command) {
    Lock lock(driver().mutex);
    auto wrong = driver().faults.obey(command, driver());
    driver().notify_all();
    return wrong ? "error: " + *wrong + "\n" : "ok\n";
}

// Answers each line of a connection until it closes.
void serve(int connection) {
    std::string line;
    for (char c; read(connection, &c, 1) == 1;) {
        if (c != '\n') {
            line += c;
            continue;
        }
        const std::string answer = obey(line);
        line.clear();
        if (send(connection, answer.data(), answer.size(), MSG_NOSIGNAL) < 0) break;
    }
    close(connection);
}

void accept_all(int listener) {
    for (;;) {
        const int connection = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
        if (connection < 0) continue;
        std::thread(serve, connection).detach();
    }
}

}  // namespace

void serve_commands() {
    const char* path = std::getenv("FAKE_CUDA_CONTROL");
    if (!path) return;
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, path, sizeof address.sun_path - 1);
    const int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    unlink(path);
    const bool listens = listener >= 0 && bind(listener, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0 &&
                         listen(listener, 8) == 0;
    if (!listens) {
        std::perror("fakecuda: FAKE_CUDA_CONTROL");
        std::abort();
    }
    std::thread(accept_all, listener).detach();
}

}  // namespace fake
