#!/usr/bin/env python3
"""Funicular and Mosec with the same Python function, run after run in turn: medians of pairs.

    perf/peers/pairs.py --venv DIR --results perf/RESULTS.md        everything, about eleven minutes
    perf/peers/pairs.py --cases at-once --duration 5 --pairs 1      a quick look

Both run the function in worker processes of the same interpreter, under the same generator, which checks every answer. CPU is
that of all processes of a server, workers included. Needs Python 3.9 or newer and release builds of both binaries; Mosec is
installed from PyPI into a virtual environment, a temporary one unless --venv names a folder to keep. Servers and generator
share the machine, which should have nothing else to do.
"""

import argparse
import datetime
import json
import os
import platform
import statistics
import subprocess
import sys
from dataclasses import dataclass

from servers import defaults, free_port, installed, processes, rewrite, servers

PEERS = ("funicular", "mosec")


@dataclass
class Case:
    """A question: a function, so many workers, a load, and which figures answer it (with their goals)."""

    question: str
    function: str
    gpus: int
    load: list
    figures: dict


CASES = {
    "saturation": Case(
        "100 ms, 14 workers, 3,000 connections, closed loop",
        "batchstring", 14, ["--connections", "3000"],
        {"good/s": "≥ 13,850", "CPU µs per request": ""},
    ),
    "seven-hundred": Case(
        "100 ms, 1 worker, 700 requests/s, Poisson",
        "batchstring", 1, ["--rate", "700", "--arrivals", "poisson"],
        {"p50 ms": "≤ 155", "p95 ms": "≤ 200", "CPU µs per request": ""},
    ),
    "lone": Case(
        "100 ms, 1 worker, a lone request every 200 ms",
        "batchstring", 1, ["--rate", "5"],
        {"p50 ms": "≤ 101.5", "p95 ms": ""},
    ),
    "at-once": Case(
        "returns at once, 1 worker, 400 connections, closed loop",
        "at_once", 1, ["--connections", "400"],
        {"good/s": "≥ 2 x Mosec", "CPU µs per request": "≤ half of Mosec"},
    ),
}  # fmt: skip


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = defaults(parser, "pairs")
    add("--cases", default=",".join(CASES), help=f"which, of {', '.join(CASES)} (default: all)")
    add("--pairs", type=int, default=3, help="runs of each server in each case (default: 3)")
    add("--duration", type=float, default=20, help="seconds measured in each run (default: 20)")
    add("--warmup", type=float, default=2, help="seconds before that (default: 2)")
    return parser.parse_args()


def measure(arguments, case, server, file):
    """One run: a server of its own, and the generator on it."""
    port = free_port()
    command = [
        arguments.perf, "run", f"http://127.0.0.1:{port}", "--path", server.path, *case.load,
        "--duration", f"{arguments.duration:g}s", "--warmup", f"{arguments.warmup:g}s",
        "--name", f"{server.name} {server.version}", "--question", case.question, "--json", str(file), "--quiet",
    ]  # fmt: skip
    with open(file.with_suffix(".log"), "w") as log, server.running(port, log) as process:
        spent_before, _ = processes.usage(process.pid)
        load = subprocess.run(command, stdout=log, stderr=log)
        spent, resident = processes.usage(process.pid)
    if load.returncode != 0:
        sys.exit(f"{server.name}: funicular-perf ended with {load.returncode}; see {file.with_suffix('.log')}")
    return figures(json.loads(file.read_text()), arguments, spent - spent_before, resident)


def figures(result, arguments, cpu_seconds, resident):
    totals, latency = result["totals"], result["latency"]["corrected"]["summary"]
    # The CPU time covers the warm-up as well.
    answered = totals["answered_rate"] * (arguments.warmup + result["duration_seconds"])
    return {
        "good/s": totals["achieved_rate"],
        "errors": totals["errors"],
        "p50 ms": latency["p50_ms"],
        "p95 ms": latency["p95_ms"],
        "CPU µs per request": 1e6 * cpu_seconds / answered,
        "resident MiB": resident / (1 << 20),
        "generator-bound": result["generator"]["generator_bound"],
    }


def compare(arguments, name, python, versions):
    """All pairs of one case; who goes first changes with every pair."""
    case = CASES[name]
    known = servers(arguments.funicular, python, versions, case.gpus, "python", case.function)
    runs = {peer: [] for peer in PEERS}
    for pair in range(arguments.pairs):
        for peer in PEERS if pair % 2 == 0 else PEERS[::-1]:
            run = measure(arguments, case, known[peer], arguments.out / f"{name}-{peer}-{pair}.json")
            runs[peer].append(run)
            shown = ", ".join(f"{figure} {run[figure]:,.1f}" for figure in case.figures)
            print(f"{name}, pair {pair + 1}, {peer}: {shown}, errors {run['errors']}", file=sys.stderr)
    return {"runs": runs, "versions": {peer: known[peer].version for peer in PEERS}}


def rows(name, outcome):
    case = CASES[name]
    found = []
    for place, (figure, goal) in enumerate(case.figures.items()):
        ours, theirs = (statistics.median(run[figure] for run in outcome["runs"][peer]) for peer in PEERS)
        question = case.question if place == 0 else ""
        digits = 1 if max(ours, theirs) < 1000 else 0
        found.append(
            f"| {question} | {figure} | {goal} | {ours:,.{digits}f} | {theirs:,.{digits}f} | {ours / theirs:.2f} |"
        )
    return found


def section(arguments, outcomes):
    """The section of RESULTS.md."""
    first = next(iter(outcomes))
    run = json.loads((arguments.out / f"{first}-funicular-0.json").read_text())
    machine, versions = run["machine"], outcomes[first]["versions"]
    runs = [run for outcome in outcomes.values() for peer in PEERS for run in outcome["runs"][peer]]
    bound = sum(run["generator-bound"] for run in runs)
    errors = {peer: sum(run["errors"] for o in outcomes.values() for run in o["runs"][peer]) for peer in PEERS}
    lines = [
        "## Beside Mosec, with the same Python function",
        "",
        f"`perf/peers/pairs.py`, {datetime.date.today().isoformat()}: Funicular {versions['funicular']} and Mosec "
        f"{versions['mosec']} in turn, medians of {arguments.pairs} pairs of {arguments.duration:g} s.",
        f"{machine['cpu_model']}, {machine['cores']} cores that server and generator share; CPython "
        f"{platform.python_version()}. Batches of up to 100. CPU is that of all processes",
        f"of a server. Errors in all runs together: Funicular {errors['funicular']:,}, Mosec {errors['mosec']:,}; runs in "
        f"which the generator was late itself: {bound} of {len(runs)}. Load average before the first run: "
        f"{arguments.load_before:.1f}.",
        "",
        "| case | figure | goal | Funicular | Mosec | ratio |",
        "| --- | --- | --- | ---: | ---: | ---: |",
    ]
    for name, outcome in outcomes.items():
        lines += rows(name, outcome)
    return "\n".join(lines) + "\n"


def main():
    arguments = parse()
    names = arguments.cases.split(",")
    unknown = set(names) - set(CASES)
    if unknown:
        sys.exit(f"there is no case {', '.join(sorted(unknown))}; there are {', '.join(CASES)}")
    arguments.out.mkdir(parents=True, exist_ok=True)
    arguments.load_before = os.getloadavg()[0]
    if arguments.load_before > 0.5:
        busy = f"the load average is {arguments.load_before:.1f}: something else runs on this machine"
        print(f"{busy}; a starved generator, above all, makes every server look alike", file=sys.stderr)
    with installed(arguments.venv) as (python, versions):
        outcomes = {name: compare(arguments, name, python, versions) for name in names}
    (arguments.out / "pairs.json").write_text(json.dumps(outcomes, indent=1))
    text = section(arguments, outcomes)
    print(text)
    if arguments.results:
        rewrite(arguments.results, "pairs", text)


if __name__ == "__main__":
    main()
