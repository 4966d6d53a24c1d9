"""LitServe around `batchstring`: one worker process for each GPU, and as many HTTP processes (its default).

Batches of up to 100, and at most 40 ms of waiting for company, as Funicular has them.
"""

import argparse

import litserve
from batchstring import batchstring


class BatchString(litserve.LitAPI):
    def setup(self, device):
        pass

    def decode_request(self, request):
        return request["input"]

    def batch(self, inputs):
        return list(inputs)

    def predict(self, inputs):
        return batchstring(inputs)

    def unbatch(self, output):
        return output

    def encode_response(self, output):
        return {"output": output}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--gpus", type=int, default=1)
    parser.add_argument("--fast-queue", action="store_true", help="ZeroMQ instead of multiprocessing queues")
    arguments = parser.parse_args()
    server = litserve.LitServer(
        BatchString(max_batch_size=100, batch_timeout=0.04),
        accelerator="cpu",
        workers_per_device=arguments.gpus,
        fast_queue=arguments.fast_queue,
    )
    server.run(host="127.0.0.1", port=arguments.port, generate_client_file=False, log_level="warning")
