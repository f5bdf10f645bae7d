"""Any Hugging Face model, with an adapter, as the endpoint serves it. Loading this loads torch."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerFast
from transformers.utils import logging

from osmosis_ai.errors import OsmosisError
from osmosis_ai.inference.tool_calls import FormatName
from osmosis_ai.inference.torch_chat import PretrainedChat
from osmosis_ai.inference.torch_model import TorchModel


class ServedChat(PretrainedChat):
    """The format of a model, and how long its tokens are."""

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerFast,
        *,
        tool_call_format: FormatName | None = None,
        note: Callable[[str], None] | None = None,
    ) -> None:
        super().__init__(tokenizer, tool_call_format=tool_call_format, note=note)
        self.longest_token = max(len(token.encode()) for token in tokenizer.get_vocab())

    @classmethod
    def load(
        cls,
        model_path: str | Path,
        *,
        tool_call_format: FormatName | None = None,
        note: Callable[[str], None] | None = None,
    ) -> ServedChat:
        """Load the tokenizer of a model by its name or from a Hugging Face folder; raises OsmosisError."""
        loaded = super().load(model_path, tool_call_format=tool_call_format, note=note)
        assert isinstance(loaded, cls)
        return loaded


def load_served_model(model_path: str, adapter: Path | None) -> TorchModel:
    """Load a model with an adapter, on the GPU if available. The adapter is merged in float32, but not in bfloat16."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    logging.disable_progress_bar()
    try:
        model: Any = AutoModelForCausalLM.from_pretrained(
            model_path, dtype=torch.float32 if device == "cpu" else torch.bfloat16
        ).to(device)
    except (OSError, ValueError, ImportError, torch.OutOfMemoryError) as error:
        raise OsmosisError(f"the model `{model_path}` cannot be loaded: {error}") from error
    if adapter is not None:
        model = _adapted(model, model_path, adapter)
    return TorchModel(model, fingerprint=_fingerprint(model_path, adapter))


def _adapted(model: PreTrainedModel, model_path: str, adapter: Path) -> Any:
    try:
        adapted = PeftModel.from_pretrained(model, str(adapter), autocast_adapter_dtype=True)
        # Merged into bfloat16, most of a small update would be rounded away (``low_rank``).
        return adapted.merge_and_unload() if model.dtype == torch.float32 else adapted.get_base_model()
    except (OSError, ValueError, RuntimeError, KeyError) as error:
        raise OsmosisError(f"the adapter in `{adapter}` cannot be put on `{model_path}`: {error}") from error


def _fingerprint(model_path: str, adapter: Path | None) -> str:
    digest = hashlib.sha256(os.fsencode(model_path))
    for file in sorted(adapter.iterdir()) if adapter is not None else ():
        digest.update(file.read_bytes())
    return digest.hexdigest()
