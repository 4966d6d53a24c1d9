#!/usr/bin/env python3
"""What a parked connection costs the server in memory.

Usage: parked.py HOST:PORT PID [CONNECTIONS]

Opens CONNECTIONS (default 8000) keep-alive connections, sends one request on each and reads its answer, and compares the
resident memory of process PID before and after: idle connections. Then it sends one more request on each, as fast as it
can, and reads the memory while they wait: run the server with a long batch time so that they all do. Kernel memory of the
sockets is not in these numbers. Prints one line of JSON."""

import json
import resource
import selectors
import socket
import sys

BODY = b'{"input": "What is the capital of France?"}'
REQUEST = (b"POST /v1/inference HTTP/1.1\r\nHost: parked\r\nContent-Type: application/json\r\n"
           b"Content-Length: %d\r\n\r\n" % len(BODY)) + BODY


def resident_kib(pid):
    with open(f"/proc/{pid}/status", encoding="ascii") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS"))


def answers(sockets):
    """Reads until every socket has had one whole answer."""
    selector, missing = selectors.DefaultSelector(), {}
    for s in sockets:
        missing[s] = b""
        selector.register(s, selectors.EVENT_READ)
    while missing:
        ready = selector.select(60)
        if not ready:
            sys.exit(f"{len(missing)} of {len(sockets)} requests got no answer within a minute")
        for key, _ in ready:
            s = key.fileobj
            received = s.recv(65536)
            if not received:
                sys.exit("the server closed a connection without an answer")
            missing[s] += received
            head, _, body = missing[s].partition(b"\r\n\r\n")
            length = [int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length")]
            if length and len(body) >= length[0]:
                del missing[s]
                selector.unregister(s)


def main():
    if len(sys.argv) not in (3, 4) or not all(word.isdigit() for word in sys.argv[2:]):
        sys.exit(__doc__)
    host, _, port = sys.argv[1].rpartition(":")
    pid, count = int(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else 8000
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    warm = socket.create_connection((host, int(port)))
    warm.sendall(REQUEST)
    answers([warm])
    before = resident_kib(pid)
    sockets = []
    for start in range(0, count, 500):
        some = [socket.create_connection((host, int(port))) for _ in range(min(500, count - start))]
        for s in some:
            s.sendall(REQUEST)
        answers(some)
        sockets += some
    idle = resident_kib(pid)
    for s in sockets:
        s.sendall(REQUEST)
    waiting = resident_kib(pid)
    answers(sockets)
    print(json.dumps({"connections": count, "idle_kib_each": round((idle - before) / count, 2),
                      "waiting_kib_each": round((waiting - before) / count, 2)}))


if __name__ == "__main__":
    main()
