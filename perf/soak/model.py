"""The function of the soak: 50 ms, upper case; raises once for each file of the name of its GPU in $SOAK_TROUBLE."""

import os
import time

TROUBLE = os.path.join(os.environ["SOAK_TROUBLE"], f"raise-{os.environ['FUNICULAR_GPU']}")


def batchstring(inputs: list[str]) -> list[str]:
    time.sleep(0.05)
    try:
        os.unlink(TROUBLE)
    except FileNotFoundError:
        return [text.upper() for text in inputs]
    raise RuntimeError("raised on purpose")
