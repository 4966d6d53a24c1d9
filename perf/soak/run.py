#!/usr/bin/env python3
"""Half an hour of steady load while workers are killed, stopped and made to raise at random: does anything leak, is every
request answered once and right?

    perf/soak/run.py                                    4 Python workers, 30 minutes, a trouble every 3 s
    perf/soak/run.py --shape remote --gpus 3            workers behind the server, themselves killed and started again
    perf/soak/run.py --shape simulated --gpus 14 --rate 5000 --minutes 10     no troubles: is memory flat?

Needs Python 3.9 or newer and release builds of both binaries. Samples go to --out as JSON, the verdict to the terminal; the
exit code is 0 if it passed, 1 if not.
"""

import argparse
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path.insert(0, str(HERE.parent))

import processes  # noqa: E402
import verdict  # noqa: E402
from fleet import SHAPES  # noqa: E402

# Troubles end this long before the load does, so that the end shows what is left of them.
QUIET_END_S = 5
# What is only about to end, after the load, has this long for it.
SETTLES_WITHIN_S = 20


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    target = ROOT / os.environ.get("CARGO_TARGET_DIR", "target") / "release"
    add = parser.add_argument
    add("--shape", choices=SHAPES, default="python", help="what runs the batches (default: python)")
    add("--gpus", type=int, default=4, help="how many workers (default: 4)")
    add("--minutes", type=float, default=30, help="how long (default: 30)")
    add("--rate", type=float, default=1000, help="requests per second, Poisson (default: 1000)")
    add("--trouble-every", type=float, default=3, help="mean seconds between two troubles, 0 for none (default: 3)")
    add("--errors-max", type=float, default=0.01, help="part of the requests that may be refused (default: 0.01)")
    add("--seed", type=int, default=1, help="of the troubles and the arrivals (default: 1)")
    add("--out", type=pathlib.Path, default=HERE.parent / "reports" / "soak", help="folder for the results (default: perf/reports/soak)")
    add("--funicular", default=str(target / "funicular"), help="the server")
    add("--perf", default=str(target / "funicular-perf"), help="the generator")
    return parser.parse_args()


def sample(fleet, began):
    """What the server, and all processes together, hold now."""
    members = fleet.members()
    resident = 0
    for pid in members:
        try:
            resident += processes.resident_bytes(pid)
        except OSError:
            continue  # it has ended meanwhile
    server = fleet.server.pid
    return {
        "at_s": round(time.monotonic() - began, 1),
        "processes": len(members),
        "server_threads": processes.threads(server),
        "server_descriptors": processes.descriptors(server, fleet.listen_ports()),
        "server_bytes": processes.resident_bytes(server),
        "all_bytes": resident,
    }


class Background(threading.Thread):
    """Calls `each` every so many seconds until it is stopped, and keeps what went wrong for whoever stops it."""

    def __init__(self, each, pauses):
        super().__init__(daemon=True)
        self.each, self.pauses, self.over, self.error = each, pauses, threading.Event(), None
        self.start()

    def run(self):
        try:
            while not self.over.wait(self.pauses()):
                self.each()
        except Exception as error:  # for the main thread to raise
            self.error = error

    def stop(self):
        self.over.set()
        self.join()
        if self.error is not None:
            raise self.error


def load_command(arguments, fleet, file):
    return [
        arguments.perf, "run", f"http://{fleet.server.listen}", "--rate", f"{arguments.rate:g}", "--arrivals", "poisson",
        "--duration", f"{60 * arguments.minutes:g}s", "--seed", str(arguments.seed), "--connections", "2000",
        "--name", f"soak-{arguments.shape}", "--json", str(file), "--quiet",
    ]  # fmt: skip


def under_load(arguments, fleet, file):
    """Runs the load with its troubles. Returns the samples, and how many troubles of each kind there were."""
    began, samples, troubles, dice = time.monotonic(), [], {}, random.Random(arguments.seed)

    def trouble():
        # Without any GPU everybody is refused, which is right and would hide what is not.
        if fleet.up() < 2:
            return
        kind = dice.choice(fleet.troubles)
        troubles[kind] = troubles.get(kind, 0) + 1
        fleet.trouble(kind, dice)

    every = max(0.2, min(5, arguments.minutes * 60 / 300))
    threads = [Background(lambda: samples.append(sample(fleet, began)), lambda: every)]
    if fleet.troubles and arguments.trouble_every > 0:
        threads.append(Background(trouble, lambda: dice.expovariate(1 / arguments.trouble_every)))
    command = load_command(arguments, fleet, file)
    with open(file.with_suffix(".log"), "w") as log, subprocess.Popen(command, stdout=log, stderr=log) as load:
        try:
            load.wait(timeout=max(1, 60 * arguments.minutes - QUIET_END_S))
        except subprocess.TimeoutExpired:
            pass
        for thread in threads[1:]:
            thread.stop()
        code = load.wait()
    threads[0].stop()
    # 4: wrong answers, which the verdict tells.
    if code not in (0, 4):
        raise RuntimeError(f"funicular-perf ended with {code}")
    return samples, troubles


def counted(fleet):
    """The requests that the server has answered, by its own count, once that does not change any more."""
    last = None
    while True:
        page = processes.fetch(f"{fleet.server.admin}/metrics") or ""
        lines = [line for line in page.splitlines() if line.startswith("funicular_requests_total{")]
        now = sum(float(line.rpartition(" ")[2]) for line in lines)
        if lines and now == last:
            return now
        last = now
        time.sleep(2.5)  # the page is up to a second old


def settled(fleet, before):
    """The sample after the load: the first one that holds no more than there was before it, else the last one in time."""
    deadline = time.monotonic() + SETTLES_WITHIN_S
    while verdict.kept(before, after := sample(fleet, time.monotonic())) and time.monotonic() < deadline:
        time.sleep(0.5)
    return after


def main():
    arguments = parse()
    for program in (arguments.funicular, arguments.perf):
        if not os.access(program, os.X_OK):
            sys.exit(f"there is no program {program}: `cargo build --release --workspace`, or name it with --funicular and --perf")
    arguments.out.mkdir(parents=True, exist_ok=True)
    file = arguments.out / f"{arguments.shape}-load.json"
    with tempfile.TemporaryDirectory(prefix="funicular-soak-") as folder:
        fleet = SHAPES[arguments.shape](arguments.funicular, pathlib.Path(folder), arguments.gpus)
        try:
            if missing := fleet.wait_up():
                sys.exit(f"the GPUs did not come up: {missing}")
            before = sample(fleet, time.monotonic())
            samples, troubles = under_load(arguments, fleet, file)
            missing = fleet.wait_up()
            answers = counted(fleet)
            after = settled(fleet, before)
        finally:
            exit_code, left = fleet.stop()
    load = json.loads(file.read_text())
    raised = troubles.get("raised", 0)
    wrong = verdict.findings(samples, before, after, load, answers, raised, exit_code, left, arguments.errors_max)
    if missing:
        wrong.append(f"a minute after the troubles: {missing}")
    result = {"findings": wrong, "troubles": troubles, "before": before, "after": after, "samples": samples}
    (arguments.out / f"{arguments.shape}.json").write_text(json.dumps(result, indent=1))
    print(verdict.report(samples, wrong, load, troubles))
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
