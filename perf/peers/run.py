#!/usr/bin/env python3
"""Measures Funicular, Mosec and LitServe with the same 100 ms batch function, the same arrivals and the same generator.

Needs Python 3.9 or newer and nothing else: Mosec and LitServe are installed from PyPI into a virtual environment, which is a
temporary one unless --venv names a folder to keep. Servers run one after the other, so none disturbs another. Every answer is
checked to be its own. Results (JSON, one comparison page for each rate) go to --out; --results rewrites the peers section of
a Markdown file.
"""

import argparse
import datetime
import json
import platform
import subprocess

from servers import defaults, free_port, installed, processes, rewrite, servers


def measure(arguments, server, rate, port, process):
    """One run of the generator; returns its result with the CPU time of the server's whole session."""
    file = arguments.out / f"{server.name}-{rate:g}.json"
    command = [
        arguments.perf, "run", f"http://127.0.0.1:{port}", "--path", server.path,
        "--request-template", '{"input": "{input}"}', "--expect", "/output",
        "--rate", f"{rate:g}", "--arrivals", "poisson",
        "--duration", f"{arguments.duration:g}s", "--warmup", f"{arguments.warmup:g}s",
        "--connections", str(arguments.connections), "--name", f"{server.name} {server.version}",
        "--question", f"What do callers see at {rate:g} requests/s on {arguments.gpus} GPU(s)?",
        "--json", str(file), "--quiet",
    ]  # fmt: skip
    spent_before, memory_before = processes.usage(process.pid)
    subprocess.run(command, check=True)
    spent, memory = processes.usage(process.pid)
    result = json.loads(file.read_text())
    # The CPU time covers the warm-up as well.
    answered = rate * arguments.warmup + result["totals"]["ok"] + result["totals"]["errors"]
    result["server"] = {
        "pid": process.pid,
        "source": "all processes of its session",
        "version": server.version,
        "cpu_seconds": spent - spent_before,
        "cpu_seconds_per_1000_requests": 1000 * (spent - spent_before) / max(answered, 1),
        "rss_bytes_start": memory_before,
        "rss_bytes_max": max(memory_before, memory),
        "rss_bytes_end": memory,
    }
    result["server_command"] = list(process.args)
    file.write_text(json.dumps(result, indent=2))
    return {"server": server, "rate": rate, "file": file, "result": result}


def table(arguments, runs):
    """The peers section of RESULTS.md."""
    day = datetime.date.today().isoformat()
    machine = runs[0]["result"]["machine"]
    lines = [
        "## Beside other servers",
        "",
        f"Measured on {day} with `perf/peers/run.py --gpus {arguments.gpus}`, generator and server on one machine:",
        f"{machine['cpu_model']}, {machine['cores']} cores, Python {platform.python_version()}. Every batch takes 100 ms and holds up to",
        "100 requests, one worker for each GPU, and nothing is held longer than 40 ms. The peers run `batchstring` in Python worker",
        f"processes, Funicular in its {arguments.executor} executor. Poisson arrivals, {arguments.duration:g} s for each row. Latency is in",
        "milliseconds from the moment a request should have left; CPU is that of all processes of the server, in seconds for 1,000",
        "requests.",
        "",
        "| offered/s | server | version | good/s | errors | p50 | p95 | p99 | max | CPU s | verdict |",
        "| ---: | --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | --- |",
    ]
    lines += [row(run) for run in sorted(runs, key=lambda run: run["rate"])]
    return "\n".join(lines) + "\n"


def row(run):
    result, totals = run["result"], run["result"]["totals"]
    latency = result["latency"]["corrected"]["summary"]
    answered = max(totals["ok"] + totals["errors"], 1)
    wrong = result["mismatches"]["wrong"] + result["mismatches"]["double"]
    verdict = "wrong answers" if wrong else "generator-bound" if result["generator"]["generator_bound"] else "measured"
    cells = [
        f"{run['rate']:,.0f}", run["server"].name, run["server"].version, f"{totals['achieved_rate']:,.1f}",
        f"{100 * totals['errors'] / answered:.2f} %",
        *(f"{latency[key]:,.0f}" for key in ("p50_ms", "p95_ms", "p99_ms", "max_ms")),
        f"{result['server']['cpu_seconds_per_1000_requests']:.3f}", verdict,
    ]  # fmt: skip
    return "| " + " | ".join(cells) + " |"


def compare(arguments, runs):
    """A comparison of all servers at each rate: on the terminal, and as a page."""
    for rate in dict.fromkeys(run["rate"] for run in runs):
        files = [str(run["file"]) for run in runs if run["rate"] == rate]
        page = arguments.out / f"compare-{rate:g}.html"
        subprocess.run([arguments.perf, "report", *files, "--html", str(page)], check=True)


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = defaults(parser, "peers")
    add("--servers", default="funicular,mosec,litserve", help="which, in which order; also litserve-fast")
    add("--gpus", type=int, default=1, help="workers of each server (default: 1)")
    add("--rates", default="5,700,900", help="requests per second, one run each (default: 5,700,900)")
    add("--duration", type=float, default=30, help="seconds measured in each run (default: 30)")
    add("--warmup", type=float, default=3, help="seconds before that (default: 3)")
    add("--connections", type=int, default=1000, help="connections at most (default: 1000)")
    add("--executor", choices=("python", "simulated"), default="python",
        help="what runs the function in Funicular (default: python, as the peers do)")
    return parser.parse_args()


def main():
    arguments = parse()
    arguments.out.mkdir(parents=True, exist_ok=True)
    runs = []
    with installed(arguments.venv) as (python, versions):
        known = servers(arguments.funicular, python, versions, arguments.gpus, arguments.executor)
        for name in arguments.servers.split(","):
            port = free_port()
            with open(arguments.out / f"{name}.log", "w") as log, known[name].running(port, log) as process:
                for rate in map(float, arguments.rates.split(",")):
                    runs.append(measure(arguments, known[name], rate, port, process))
    compare(arguments, runs)
    section = table(arguments, runs)
    print(section)
    if arguments.results:
        rewrite(arguments.results, "peers", section)


if __name__ == "__main__":
    main()
