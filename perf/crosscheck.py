#!/usr/bin/env python3
"""Do funicular-perf, wrk and hey agree on a server that takes 100 ms for everything?

    cargo build --release -p funicular-perf --bins --examples
    perf/crosscheck.py [--rounds 5] [--seconds 6] [--realtime]

Each round drives the same server with each tool in turn. Printed are medians over the rounds, and how far each figure is from
wrk's. A busy machine shows in the p99 and the maximum of all of them, in one round here and in another there; `--realtime` (as
root) runs server and tools at a real-time priority, so that other work on the machine does not disturb them.
"""

import argparse
import json
import re
import statistics
import subprocess
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CONNECTIONS = 20
RATE = 190  # All tools hold it: 20 callers on 100 ms make 200 a second.


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5, help="how often each tool is run (default: 5)")
    parser.add_argument("--seconds", type=int, default=6, help="length of a run (default: 6)")
    parser.add_argument("--realtime", action="store_true", help="server and tools at real-time priority (as root)")
    parser.add_argument("--build", type=Path, default=ROOT / "target" / "release", help="folder with the release build")
    options = parser.parse_args()
    priority = ["chrt", "-f", "10"] if options.realtime else []
    server = subprocess.Popen(
        [*priority, options.build / "examples" / "fake-server", "127.0.0.1:0", "100"], stdout=subprocess.PIPE, text=True
    )
    try:
        url = re.search(r"http://\S+", server.stdout.readline())[0]
        tools = {
            "wrk": lambda: wrk(priority, url, options.seconds),
            "hey": lambda: hey(priority, url, options.seconds),
            "funicular-perf, closed": lambda: ours(priority, options, url, ["-c", str(CONNECTIONS)]),
            "funicular-perf, open": lambda: ours(priority, options, url, ["-c", "40", "--rate", str(RATE), "--warmup", "1s"]),
        }
        rounds = {name: [] for name in tools}
        for _ in range(options.rounds):
            for name, drive in tools.items():
                rounds[name].append(drive())
        show(rounds)
    finally:
        server.kill()


def output(command):
    return subprocess.run([str(word) for word in command], check=True, capture_output=True, text=True).stdout


def wrk(priority, url, seconds):
    said = output([*priority, "wrk", "-t1", f"-c{CONNECTIONS}", f"-d{seconds}s", "--latency", url + "/"])
    latency = re.search(r"Latency\s+\S+\s+\S+\s+(\S+)", said)[1]
    return [milliseconds(re.search(rf"(?m)^\s+{part}%\s+(\S+)", said)[1]) for part in (50, 99)] + [milliseconds(latency)]


def milliseconds(text):
    number, unit = re.fullmatch(r"([\d.]+)(us|ms|s)", text).groups()
    return float(number) * {"us": 0.001, "ms": 1, "s": 1000}[unit]


def hey(priority, url, seconds):
    said = output([*priority, "hey", "-z", f"{seconds}s", "-c", CONNECTIONS, url + "/"])
    found = [re.search(pattern, said)[1] for pattern in (r"50%+ in ([\d.]+)", r"99%+ in ([\d.]+)", r"Slowest:\s+([\d.]+)")]
    return [float(seconds) * 1000 for seconds in found]


def ours(priority, options, url, more):
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        program = options.build / "funicular-perf"
        output([*priority, program, "run", url, "--duration", f"{options.seconds}s", "--json", file.name, *more])
        summary = json.load(file)["latency"]["corrected"]["summary"]
    return [summary[key] for key in ("p50_ms", "p99_ms", "max_ms")]


def show(rounds):
    medians = {name: [statistics.median(column) for column in zip(*rows)] for name, rows in rounds.items()}
    print("| tool | p50 | p99 | max |\n| --- | --- | --- | --- |")
    for name, figures in medians.items():
        cells = [f"{figure:.2f} ({figure / base - 1:+.1%})" for figure, base in zip(figures, medians["wrk"])]
        print(f"| {name} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
