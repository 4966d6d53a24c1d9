"""A worker for Funicular in plain Python: POST /internal/batch with the standard library alone.

    python3 examples/worker.py 8081 &
    funicular --worker http://127.0.0.1:8081
"""
import json
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


def batchstring(inputs):
    return [text.upper() for text in inputs]


gpu = threading.Lock()  # one batch at a time
ran = {}  # batch_id: when, the requests, and the results, so that a batch that is sent again does not run again


def run(batch):
    known = ran.get(batch["batch_id"])
    if known is None:
        try:
            outputs = batchstring([request["input"] for request in batch["requests"]])
        except Exception as problem:  # whose input it was is found out by the server, by halves
            return 422, {"detail": f"{type(problem).__name__}: {problem}"}
        results = [{"request_id": request["request_id"], "output": output, "status": "ok"}
                   for request, output in zip(batch["requests"], outputs)]
        known = ran[batch["batch_id"]] = (time.monotonic(), batch["requests"], results)
        for old in [key for key, value in ran.items() if value[0] < time.monotonic() - 30]:
            del ran[old]
    if known[1] != batch["requests"]:
        return 409, {"detail": "another batch was sent under this batch_id"}
    return 200, {"batch_id": batch["batch_id"], "results": known[2]}


class Worker(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"  # keeps the connection
    disable_nagle_algorithm = True

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        try:
            batch = json.loads(body)
            with gpu:
                self.answer(*run(batch))
        except (ValueError, KeyError, TypeError, RecursionError) as problem:
            self.answer(400, {"detail": f"this is no batch: {problem}"})

    def do_GET(self):
        self.answer(200, {"ready": True})

    def answer(self, status, content):
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        pass


ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Worker).serve_forever()
