"""The servers that are compared: how each is installed, started and asked. Used by run.py and pairs.py."""

import contextlib
import json
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path.insert(0, str(HERE.parent))

import processes  # noqa: E402

READY_SECONDS = 60


class Server:
    """A server to be measured: how it is started, and the shape of its requests."""

    def __init__(self, name, version, path, command, environment=None):
        self.name, self.version, self.path = name, version, path
        self.command, self.environment = command, environment or {}

    @contextlib.contextmanager
    def running(self, port, log):
        """Runs the server in a session of its own, so that its workers end with it, whatever happens."""
        process = processes.start(self.command(port), HERE, log, self.environment)
        try:
            wait_until_ready(process, port, self.path)
            yield process
        finally:
            processes.stop(process)


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


@contextlib.contextmanager
def installed(venv):
    """The Python of a virtual environment with the peers, a temporary one without `venv`, and the versions that it got."""
    folder = venv or pathlib.Path(tempfile.mkdtemp(prefix="funicular-peers-"))
    try:
        yield install(folder.absolute())
    finally:
        if venv is None:
            shutil.rmtree(folder)


def install(venv):
    python = venv / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
    pip = [str(python), "-m", "pip"]
    subprocess.run([*pip, "install", "--quiet", "--requirement", str(HERE / "requirements.txt")], check=True)
    listed = json.loads(subprocess.check_output([*pip, "list", "--format", "json"]))
    return str(python), {package["name"].lower(): package["version"] for package in listed}


def servers(binary, python, versions, gpus, executor="python", function="batchstring"):
    """Everything that can be measured, by name. `function` is the module whose `batchstring` is run."""
    reported = subprocess.run([binary, "--version"], capture_output=True, text=True, check=True)
    environment = {"GPUS": str(gpus), "FUNCTION": function}

    def funicular(port):
        command = [binary, "serve", "--listen", f"127.0.0.1:{port}", "--admin", "127.0.0.1:0", "--gpus", str(gpus)]
        if executor == "simulated":
            return [*command, "--executor", "simulated", "--sim-latency-ms", "100"]
        # The same interpreter as the peers have.
        return [*command, "--python", f"{function}.py", "--python-bin", python]

    def mosec(port):
        # More may wait than its default of 1,024, so that a closed loop of 3,000 callers is not turned away.
        return [python, "mosec_server.py", "--address", "127.0.0.1", "--port", str(port), "--capacity", "4096"]

    def litserve(port):
        return [python, "litserve_server.py", "--port", str(port), "--gpus", str(gpus)]

    def litserve_fast(port):
        return [*litserve(port), "--fast-queue"]

    known = [
        Server("funicular", reported.stdout.split()[-1], "/v1/inference", funicular),
        Server("mosec", versions["mosec"], "/inference", mosec, environment),
        Server("litserve", versions["litserve"], "/predict", litserve, environment),
        Server("litserve-fast", versions["litserve"] + ", fast queue", "/predict", litserve_fast, environment),
    ]
    return {server.name: server for server in known}


def defaults(parser, out):
    """The options that both programs take."""
    target = ROOT / os.environ.get("CARGO_TARGET_DIR", "target") / "release"
    add = parser.add_argument
    add("--perf", default=str(target / "funicular-perf"), help="the generator")
    add("--funicular", default=str(target / "funicular"), help="the server")
    add("--venv", type=pathlib.Path, help="folder for the virtual environment (default: a temporary one)")
    add("--out", type=pathlib.Path, default=HERE.parent / "reports" / out, help=f"folder for the results (default: perf/reports/{out})")
    add("--results", type=pathlib.Path, help="Markdown file in which the section of these figures is rewritten")
    return add


def rewrite(file, name, section):
    """Puts `section` between the marks called `name` in `file`; the rest of the file stays as it is."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    text = file.read_text() if file.exists() else "# Results\n"
    marked = f"{begin}\n{section}{end}\n"
    if begin in text and end in text:
        head, tail = text.split(begin, 1)[0], text.split(end, 1)[1].lstrip("\n")
        text = head + marked + ("\n" + tail if tail else "")
    else:
        text = text.rstrip("\n") + "\n\n" + marked
    file.write_text(text)
