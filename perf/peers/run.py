#!/usr/bin/env python3
"""Measures Funicular, Mosec and LitServe with the same 100 ms batch function, the same arrivals and the same generator.

Needs Python 3.9 or newer and nothing else: Mosec and LitServe are installed from PyPI into a virtual environment, which is a
temporary one unless --venv names a folder to keep. Servers run one after the other, so none disturbs another. Every answer is
checked to be its own. Results (JSON, one comparison page for each rate) go to --out; --results rewrites the peers section of
a Markdown file.
"""

import argparse
import contextlib
import datetime
import json
import os
import pathlib
import platform
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
BEGIN, END = "<!-- peers: begin -->", "<!-- peers: end -->"
READY_SECONDS = 60
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


class Server:
    """A server to be measured: how it is started, and the shape of its requests."""

    def __init__(self, name, version, path, command, environment=None):
        self.name, self.version, self.path = name, version, path
        self.command, self.environment = command, environment or {}

    @contextlib.contextmanager
    def running(self, port, log):
        """Runs the server in a session of its own, so that its workers end with it, whatever happens."""
        environment = {**os.environ, **self.environment, "PYTHONDONTWRITEBYTECODE": "1"}
        process = subprocess.Popen(
            self.command(port), cwd=HERE, env=environment, stdout=log, stderr=log, start_new_session=True
        )
        try:
            wait_until_ready(process, port, self.path)
            yield process
        finally:
            stop(process)


def stop(process):
    """First politely, then the whole session, which the server leads alone."""
    process.terminate()
    try:
        process.wait(timeout=15)
    except subprocess.TimeoutExpired:
        pass
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def wait_until_ready(process, port, path):
    """Until a request is answered as it should be."""
    body = json.dumps({"input": "are you ready?"}).encode()
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", body, headers)
    deadline = time.monotonic() + READY_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            sys.exit(f"{process.args[0]} ended with {process.returncode} before it was ready; see its log")
        with contextlib.suppress(urllib.error.URLError, ConnectionError, TimeoutError):
            with urllib.request.urlopen(request, timeout=5) as answer:
                if json.load(answer)["output"] == "ARE YOU READY?":
                    return
        time.sleep(0.1)
    sys.exit(f"{process.args[0]} was not ready within {READY_SECONDS} s; see its log")


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def session_usage(session):
    """CPU seconds, those of children that have ended included, and resident bytes of all processes of a session.

    Pages that processes share count once for each of them.
    """
    ticks = pages = 0
    for entry in pathlib.Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError):
            # The name of the command, in brackets, may hold spaces.
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            if int(fields[3]) == session:
                ticks += sum(int(field) for field in fields[11:15])
                pages += int(fields[21])
    return ticks / TICKS_PER_SECOND, pages * os.sysconf("SC_PAGE_SIZE")


def install(venv):
    """Installs the peers; returns the environment's Python and the versions that it got."""
    python = venv / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
    pip = [str(python), "-m", "pip"]
    subprocess.run([*pip, "install", "--quiet", "--requirement", str(HERE / "requirements.txt")], check=True)
    listed = json.loads(subprocess.check_output([*pip, "list", "--format", "json"]))
    return str(python), {package["name"].lower(): package["version"] for package in listed}


def servers(arguments, python, versions):
    """Everything that can be measured, by name."""
    gpus = str(arguments.gpus)
    reported = subprocess.run([arguments.funicular, "--version"], capture_output=True, text=True, check=True)

    def funicular(port):
        command = [arguments.funicular, "serve", "--listen", f"127.0.0.1:{port}", "--admin", "127.0.0.1:0"]
        return [*command, "--gpus", gpus, "--executor", "simulated", "--sim-latency-ms", "100"]

    def mosec(port):
        return [python, "mosec_server.py", "--address", "127.0.0.1", "--port", str(port)]

    def litserve(port):
        return [python, "litserve_server.py", "--port", str(port), "--gpus", gpus]

    def litserve_fast(port):
        return [*litserve(port), "--fast-queue"]

    known = [
        Server("funicular", reported.stdout.split()[-1], "/v1/inference", funicular),
        Server("mosec", versions["mosec"], "/inference", mosec, {"GPUS": gpus}),
        Server("litserve", versions["litserve"], "/predict", litserve),
        Server("litserve-fast", versions["litserve"] + ", fast queue", "/predict", litserve_fast),
    ]
    return {server.name: server for server in known}


def measure(arguments, server, rate, port, process):
    """One run of the generator; returns its result with the CPU time of the server's whole session."""
    file = arguments.out / f"{server.name}-{rate:g}.json"
    command = [
        arguments.perf, "run", f"http://127.0.0.1:{port}", "--path", server.path,
        "--request-template", '{"input": "{input}"}', "--expect", "/output",
        "--rate", f"{rate:g}", "--arrivals", "poisson",
        "--duration", f"{arguments.duration:g}s", "--warmup", f"{arguments.warmup:g}s",
        "--connections", str(arguments.connections), "--name", f"{server.name} {server.version}",
        "--question", f"What do callers see at {rate:g} requests/s on {arguments.gpus} simulated GPU(s)?",
        "--json", str(file), "--quiet",
    ]  # fmt: skip
    spent_before, memory_before = session_usage(process.pid)
    subprocess.run(command, check=True)
    spent, memory = session_usage(process.pid)
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
        f"processes, Funicular in its simulated executor. Poisson arrivals, {arguments.duration:g} s for each row. Latency is in",
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


def rewrite(file, section):
    """Puts `section` between its marks in `file`; the rest of the file stays as it is."""
    text = file.read_text() if file.exists() else "# Results\n"
    marked = f"{BEGIN}\n{section}{END}\n"
    if BEGIN in text and END in text:
        head, tail = text.split(BEGIN, 1)[0], text.split(END, 1)[1].lstrip("\n")
        text = head + marked + tail
    else:
        text = text.rstrip("\n") + "\n\n" + marked
    file.write_text(text)


def compare(arguments, runs):
    """A comparison of all servers at each rate: on the terminal, and as a page."""
    for rate in dict.fromkeys(run["rate"] for run in runs):
        files = [str(run["file"]) for run in runs if run["rate"] == rate]
        page = arguments.out / f"compare-{rate:g}.html"
        subprocess.run([arguments.perf, "report", *files, "--html", str(page)], check=True)


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--perf", default=str(ROOT / "target/release/funicular-perf"), help="the generator")
    add("--funicular", default=str(ROOT / "target/release/funicular"), help="the server")
    add("--servers", default="funicular,mosec,litserve", help="which, in which order; also litserve-fast")
    add("--gpus", type=int, default=1, help="workers of each server (default: 1)")
    add("--rates", default="5,700,900", help="requests per second, one run each (default: 5,700,900)")
    add("--duration", type=float, default=30, help="seconds measured in each run (default: 30)")
    add("--warmup", type=float, default=3, help="seconds before that (default: 3)")
    add("--connections", type=int, default=1000, help="connections at most (default: 1000)")
    add("--venv", type=pathlib.Path, help="folder for the virtual environment (default: a temporary one)")
    add("--out", type=pathlib.Path, default=HERE.parent / "reports" / "peers", help="folder for the results")
    add("--results", type=pathlib.Path, help="Markdown file whose peers section is rewritten")
    return parser.parse_args()


def main():
    arguments = parse()
    arguments.out.mkdir(parents=True, exist_ok=True)
    temporary = None if arguments.venv else tempfile.mkdtemp(prefix="funicular-peers-")
    try:
        python, versions = install((arguments.venv or pathlib.Path(temporary)).absolute())
        known = servers(arguments, python, versions)
        runs = []
        for name in arguments.servers.split(","):
            port = free_port()
            with open(arguments.out / f"{name}.log", "w") as log, known[name].running(port, log) as process:
                for rate in map(float, arguments.rates.split(",")):
                    runs.append(measure(arguments, known[name], rate, port, process))
    finally:
        if temporary:
            shutil.rmtree(temporary)
    compare(arguments, runs)
    section = table(arguments, runs)
    print(section)
    if arguments.results:
        rewrite(arguments.results, section)


if __name__ == "__main__":
    main()
