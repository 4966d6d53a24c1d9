"""Servers as child processes of a measurement, and what they and all that they have started hold and spend.

Used by soak/run.py and peers/run.py. Everything is read from /proc, so Linux only; the standard library is enough.
"""

import contextlib
import os
import pathlib
import re
import signal
import subprocess
import time
import urllib.error
import urllib.request

TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
STARTS_WITHIN_S = 60


def start(command, folder, log, environment=None):
    """Starts a server in a session of its own, so that whatever it starts can be found, and ended, with it."""
    environment = {**os.environ, **(environment or {}), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.Popen(
        command, cwd=folder, env=environment, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True
    )


def stop(process, within_s=15):
    """First politely, then the whole session. Returns what the server exited with, `None` if it had to be killed."""
    code = None
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        code = process.wait(timeout=within_s)
    for pid in of_sessions({process.pid}):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.wait()
    return code


def fields(pid):
    """What /proc says of a process from its state on; the command's name, which may hold spaces, comes before that."""
    return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def living(which):
    """The living processes for which `which` holds, given what /proc says of them."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError):
                about = fields(entry)
                if about[0] not in "ZX" and which(about):
                    found.append(int(entry))
    return sorted(found)


def of_sessions(leaders):
    """The living processes of the sessions that `leaders` lead, or have led."""
    return living(lambda about: int(about[3]) in leaders)


def children(parent):
    """The living children of a process."""
    return living(lambda about: int(about[1]) == parent)


def arguments(pid):
    """The command line of a process; empty if it has ended."""
    try:
        return pathlib.Path(f"/proc/{pid}/cmdline").read_text(errors="replace").split("\0")[:-1]
    except OSError:
        return []


def usage(leader):
    """CPU seconds, those of children that have ended included, and resident bytes of all processes of a session.

    Pages that processes share count once for each of them.
    """
    ticks = pages = 0
    for pid in of_sessions({leader}):
        with contextlib.suppress(OSError):
            about = fields(pid)
            ticks += sum(int(field) for field in about[11:15])
            pages += int(about[21])
    return ticks / TICKS_PER_SECOND, pages * PAGE_BYTES


def resident_bytes(pid):
    """Resident bytes of one process."""
    return int(fields(pid)[21]) * PAGE_BYTES


def threads(pid):
    """How many threads a process has."""
    return len(os.listdir(f"/proc/{pid}/task"))


def descriptors(pid, listen_ports=()):
    """How many descriptors a process has open, the callers' connections to `listen_ports` aside: those come and go."""
    callers = set()
    if listen_ports:
        for line in pathlib.Path("/proc/net/tcp").read_text().splitlines()[1:]:
            about = line.split()
            is_listener = about[3] == "0A"
            if int(about[1].rpartition(":")[2], 16) in listen_ports and not is_listener:
                callers.add(f"socket:[{about[9]}]")
    count = 0
    for name in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(OSError):
            count += os.readlink(f"/proc/{pid}/fd/{name}") not in callers
    return count


def addresses(process, screen):
    """Where a funicular that was just started listens and serves its admin plane, from its screen.

    Raises `RuntimeError` if it ends instead.
    """
    deadline = time.monotonic() + STARTS_WITHIN_S
    while time.monotonic() < deadline:
        text = pathlib.Path(screen).read_text(errors="replace")
        listen = re.search(r"listening on http://(\S+)", text)
        admin = re.search(r"admin on (http://\S+)", text)
        if listen and admin:
            return listen[1], admin[1]
        if process.poll() is not None:
            raise RuntimeError(f"the server ended with {process.returncode} before it listened:\n{text}")
        time.sleep(0.05)
    raise RuntimeError(f"the server did not listen within {STARTS_WITHIN_S} s")


def fetch(url):
    """The text behind a URL; `None` if nobody answers, or not with success."""
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return answer.read().decode()
    except (urllib.error.URLError, OSError):
        return None
