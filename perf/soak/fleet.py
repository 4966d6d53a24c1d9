"""What a soak runs: a server with its GPUs in one of three shapes, and what may be done to them.

* `Local`: one server, a Python worker process for each GPU.
* `Remote`: one server and `funicular worker` processes behind it, each with a Python worker process of its own.
* `Simulated`: one server, no worker; nothing can be done to it.
"""

import contextlib
import json
import os
import pathlib
import signal
import threading
import time

import processes

HERE = pathlib.Path(__file__).resolve().parent
MODEL = str(HERE / "model.py")
UP_WITHIN_S = 60
# Longer than a batch time-out, so that a worker that stands still is taken out of service meanwhile.
STANDS_STILL_S = 3
RESTARTED_AFTER_S = 1


def signal_to(pid, which):
    """Sends a signal to a process, which may have ended by itself."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, which)


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

    def listen_port(self):
        return int(self.server.listen.rpartition(":")[2])

    def members(self):
        """All processes, started by whomever."""
        sessions = {session for program in self.programs() for session in program.sessions}
        return processes.of_sessions(sessions)

    def up(self):
        """How many GPUs serve, as of a second ago at most."""
        text = processes.fetch(f"{self.server.admin}/status")
        return sum(gpu["up"] for gpu in json.loads(text)["gpus"]) if text else 0

    def wait_up(self):
        """Whether every GPU served, and nothing more was about to start or end, before the time was up."""
        deadline = time.monotonic() + UP_WITHIN_S
        while time.monotonic() < deadline:
            if self.up() == self.gpus and len(self.members()) == self.members_wanted():
                return True
            time.sleep(0.2)
        return False

    def stop(self):
        """Ends everything. Returns what the server exited with, and the processes that outlived it."""
        code = self.drain(self.server)
        left = processes.of_sessions({self.server.pid})
        for program in self.programs():
            processes.stop(program.process)
        return code, left

    @staticmethod
    def drain(program):
        program.process.terminate()
        try:
            return program.process.wait(timeout=40)
        except Exception:
            return None


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
        return 1 + self.gpus

    def trouble(self, kind, random):
        if kind == "raised":
            (self.folder / f"raise-{random.randrange(self.gpus)}").touch()
            return
        workers = processes.children(self.server.pid)
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
        return 1 + 2 * self.gpus

    def trouble(self, kind, random):
        worker = random.choice(self.workers)
        if kind == "raised":
            (worker.folder / "raise-0").touch()
        elif kind == "bereft":
            for pid in processes.children(worker.pid):
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
