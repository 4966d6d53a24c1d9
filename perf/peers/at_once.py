"""The batch function that costs nothing: what is left is what a server costs."""


def batchstring(inputs: list[str]) -> list[str]:
    return [text.upper() for text in inputs]
