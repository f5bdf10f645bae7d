"""Torch engine for any Hugging Face causal language model, on CPU or GPU.

Only the network differs from the NumPy engine (``engine``, ``batching``, ``slots``, ``sampling``). Importing this
module loads torch.
"""

from __future__ import annotations

from pathlib import Path

import torch

from osmosis_ai.inference.engine import InferenceEngine
from osmosis_ai.inference.torch_model import TorchModel


class TorchEngine(InferenceEngine):
    """Serves a model of transformers; a context manager like its parent."""

    model: TorchModel

    def __init__(
        self,
        model_path: str | Path,
        *,
        device: str = "cpu",
        dtype: torch.dtype | None = None,
        max_batch: int = 32,
        max_waiting: int = 1024,
        max_positions: int | None = None,
        kept: int = 32,
    ) -> None:
        network = TorchModel.load(model_path, device=device, dtype=dtype, max_positions=max_positions)
        super().__init__(network, max_batch=max_batch, max_waiting=max_waiting, kept=kept)
