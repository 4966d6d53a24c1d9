"""The batch function that every server of the comparison runs: about 100 ms, whatever the batch holds."""

import time


def batchstring(inputs: list[str]) -> list[str]:
    time.sleep(0.1)
    return [text.upper() for text in inputs]
