"""Mosec around `batchstring`: one worker process for each GPU.

Batches of up to 100, and at most 40 ms of waiting for company, as Funicular has them. The port, the capacity of the queue and
the time-out are Mosec's own command-line options; the number of GPUs and the module of the function come as the environment
variables GPUS and FUNCTION, since Mosec refuses options that it doesn't know.
"""

import importlib
import os

from mosec import Server, Worker

batchstring = importlib.import_module(os.environ.get("FUNCTION", "batchstring")).batchstring


class BatchString(Worker):
    def forward(self, data: list[dict]) -> list[dict]:
        outputs = batchstring([item["input"] for item in data])
        return [{"output": output} for output in outputs]


if __name__ == "__main__":
    server = Server()
    server.append_worker(
        BatchString,
        num=int(os.environ.get("GPUS", "1")),
        max_batch_size=100,
        max_wait_time=40,
    )
    server.run()
