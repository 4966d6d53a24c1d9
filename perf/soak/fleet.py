"""What a soak runs: a server with its GPUs in one of three shapes, and what may be done to them.

* `Local`: one server, a Python worker process for each GPU.
* `Remote`: one server and `funicular worker` processes behind it, each with a Python worker process of its own.
* `Simulated`: one server, no worker; nothing can be done to it.

A program that has Python workers also has a guard: a process that waits for the program's end, to kill what workers leave behind
then. It is expected to be there, and to end by itself after its program; no trouble is made for it.
"""

import contextlib
import json
import os
import pathlib
import signal
import subprocess
import threading
import time

import processes

HERE = pathlib.Path(__file__).resolve().parent
MODEL = str(HERE / "model.py")
UP_WITHIN_S = 60
# Longer than a batch time-out, so that a worker that stands still is taken out of service meanwhile.
STANDS_STILL_S = 3
RESTARTED_AFTER_S = 1
# Longer than a program's own grace period of 30 s.
DRAINS_WITHIN_S = 40
# A guard ends after its program, and has all processes of the system to look at first.
GUARD_ENDS_WITHIN_S = 20


def signal_to(pid, which):
    """Sends a signal to a process, which may have ended by itself."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, which)


def is_guard(pid):
    """Whether a process is the guard of a program's workers."""
    return processes.arguments(pid)[1:] == ["guard"]


def described(pid):
    """A process in words: its id and its command line."""
    return f"{pid}: {' '.join(processes.arguments(pid))}"


def workers_of(program):
    """The Python workers of a program, by process id."""
    return [pid for pid in processes.children(program.pid) if not is_guard(pid)]


class Program:
    """One funicular process, restarted on the address that it had."""

    def __init__(self, command, folder, environment=None):
        self.command, self.folder, self.environment = command, folder, environment
        folder.mkdir(parents=True, exist_ok=True)
        self.listen, self.process = "127.0.0.1:0", None
        # The sessions of those that were killed too: what they had started must be gone with them.
        self.sessions = []
        self.start()

    def start(self):
        screen = self.folder / "screen"
        command = [*self.command, "--listen", self.listen, "--admin", "127.0.0.1:0", "--log-level", "warn"]
        with open(screen, "w") as out:
            self.process = processes.start(command, HERE, out, self.environment)
        self.sessions.append(self.process.pid)
        self.listen, self.admin = processes.addresses(self.process, screen)

    @property
    def pid(self):
        return self.process.pid


class Fleet:
    """A server and what is behind it."""

    troubles = ()

    def start_server(self, command, folder, gpus, environment=None):
        self.gpus = gpus
        self.server = Program(command, folder, environment)

    def programs(self):
        return [self.server]

    def listen_ports(self):
        """Those of the server's data plane and of its admin plane."""
        return {int(address.rpartition(":")[2]) for address in (self.server.listen, self.server.admin)}

    def members(self):
        """All processes, started by whomever."""
        return processes.of_sessions(self.sessions())

    def sessions(self):
        return {session for program in self.programs() for session in program.sessions}

    def up(self):
        """How many GPUs serve, as of a second ago at most."""
        text = processes.fetch(f"{self.server.admin}/status")
        return sum(gpu["up"] for gpu in json.loads(text)["gpus"]) if text else 0

    def wait_up(self):
        """Waits until every GPU serves, and nothing more is about to start or end. Returns what is wrong if that takes too long."""
        deadline = time.monotonic() + UP_WITHIN_S
        while True:
            up, members = self.up(), self.members()
            if up == self.gpus and len(members) == self.members_wanted():
                return None
            if time.monotonic() >= deadline:
                return (
                    f"{up} of {self.gpus} GPUs up, {len(members)} processes where {self.members_wanted()} are expected:\n"
                    + "\n".join(f"  {described(pid)}" for pid in members)
                )
            time.sleep(0.2)

    def stop(self):
        """Ends everything. Returns what the server exited with, and the processes that outlived it or its workers."""
        code, others = self.drain([self.server]), self.programs()[1:]
        left = self.outlived({self.server.pid})
        self.drain(others)
        left += self.outlived(self.sessions() - {self.server.pid})
        for program in self.programs():
            processes.stop(program.process)
        return code, left

    @staticmethod
    def drain(programs):
        """Ends programs politely, all of them at once. Returns what the last one exited with, `None` if it did not end."""
        code = None
        for program in programs:
            program.process.terminate()
        for program in programs:
            code = None
            with contextlib.suppress(subprocess.TimeoutExpired):
                code = program.process.wait(timeout=DRAINS_WITHIN_S)
        return code

    @staticmethod
    def outlived(sessions):
        """Who is left of sessions whose programs have ended, as pid and command line; only guards are waited for."""
        left = [described(pid) for pid in processes.of_sessions(sessions) if not is_guard(pid)]
        deadline = time.monotonic() + GUARD_ENDS_WITHIN_S
        while (guards := list(filter(is_guard, processes.of_sessions(sessions)))) and time.monotonic() < deadline:
            time.sleep(0.05)
        return left + [described(pid) for pid in guards]


class Simulated(Fleet):
    """Nothing but a server."""

    def __init__(self, binary, folder, gpus):
        self.start_server([binary, "serve", "--gpus", str(gpus)], folder / "server", gpus)

    def members_wanted(self):
        return 1


class Local(Fleet):
    """A server with a Python worker for each GPU: it replaces those that die, hang or raise by itself."""

    troubles = ("killed", "stopped", "raised")

    def __init__(self, binary, folder, gpus):
        self.folder = folder
        command = [binary, "serve", "--python", MODEL, "--gpus", str(gpus)]
        self.start_server(command, folder / "server", gpus, {"SOAK_TROUBLE": str(folder)})

    def members_wanted(self):
        return 2 + self.gpus  # the server and its guard

    def trouble(self, kind, random):
        if kind == "raised":
            (self.folder / f"raise-{random.randrange(self.gpus)}").touch()
            return
        workers = workers_of(self.server)
        if workers:
            signal_to(random.choice(workers), signal.SIGKILL if kind == "killed" else signal.SIGSTOP)


class Remote(Fleet):
    """A server and workers on "other machines": somebody has to start those again that are killed."""

    troubles = ("killed", "stopped", "raised", "bereft")

    def __init__(self, binary, folder, gpus):
        self.workers, self.lock = [], threading.Lock()
        for index in range(gpus):
            own = folder / f"worker-{index}"
            command = [binary, "worker", "--python", MODEL]
            self.workers.append(Program(command, own, {"SOAK_TROUBLE": str(own)}))
        urls = [f"http://{worker.listen}" for worker in self.workers]
        command = [binary, "serve", *(word for url in urls for word in ("--worker", url))]
        self.start_server(command, folder / "server", gpus)

    def programs(self):
        return [self.server, *self.workers]

    def members_wanted(self):
        return 1 + 3 * self.gpus  # each `funicular worker` has a guard and a Python worker

    def trouble(self, kind, random):
        worker = random.choice(self.workers)
        if kind == "raised":
            (worker.folder / "raise-0").touch()
        elif kind == "bereft":
            for pid in workers_of(worker):
                signal_to(pid, signal.SIGKILL)
        elif kind == "stopped":
            signal_to(worker.pid, signal.SIGSTOP)
            time.sleep(STANDS_STILL_S)
            signal_to(worker.pid, signal.SIGCONT)
        else:
            signal_to(worker.pid, signal.SIGKILL)
            worker.process.wait()
            time.sleep(RESTARTED_AFTER_S)
            worker.start()


SHAPES = {"simulated": Simulated, "python": Local, "remote": Remote}
