"""Which language is this? A real model, small enough for a laptop's CPU, that needs no download.

    pip install py3langid
    funicular serve --python examples/language.py:Language --gpus 2

A class instead of a function: it is built once in each worker process, `setup` loads the model before the worker counts
as ready, and then the instance is called with each batch.
"""

from __future__ import annotations


class Language:
    def setup(self) -> None:
        from py3langid import classify

        classify("The first call loads the model.")
        self.classify = classify

    def __call__(self, inputs: list[str]) -> list[str]:
        return [self.classify(text)[0] for text in inputs]
