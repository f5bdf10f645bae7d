"""Networks that do not draw from their own distribution, as servers do that fill in a model's own defaults."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from osmosis_ai.inference.engine import Drawn, Floats, Ints, SamplingRows
from osmosis_ai.inference.model import Model

# What the models' generation_config.json say.
QWEN25 = {"temperature": 0.7, "top_k": 20, "top_p": 0.8, "repetition_penalty": 1.05}


class TruncatingModel:
    """The tiny model; it draws from, and reports, what is left of each distribution.

    A penalty is on every token that it has read.
    """

    def __init__(
        self, model: Model, *, top_p: float = 1.0, top_k: int = 0, repetition_penalty: float = 1.0
    ) -> None:
        self._model = model
        self._top_p, self._top_k, self._penalty = top_p, top_k, repetition_penalty
        self._read = np.zeros(model.config.vocab_size, bool)
        self.config, self.fingerprint = model.config, model.fingerprint
        self.new_cache, self.load_weights = model.new_cache, model.load_weights

    def extend(self, cache: Any, rows: slice, ids: Ints, starts: Ints, wanted: Ints) -> Floats:
        self._read[ids] = True
        return self._model.extend(cache, rows, ids, starts, wanted)

    def draw(self, logits: Floats, sources: Sequence[int] | slice, sampling: SamplingRows) -> list[Drawn]:
        wanted = logits[sources].copy()
        penalised = wanted[:, self._read]
        wanted[:, self._read] = np.where(penalised > 0, penalised / self._penalty, penalised * self._penalty)
        kept = np.stack([self._kept(row) for row in wanted / sampling["temperature"][:, None]])
        untruncated = sampling.copy()
        untruncated["top_p"] = 1.0
        return self._model.draw(np.where(kept, wanted, -1e9), slice(None), untruncated)

    def _kept(self, scaled: Floats) -> Any:
        order = np.argsort(-scaled, kind="stable")
        ranked = np.exp(scaled[order] - scaled[order[0]])
        before = np.cumsum(ranked / ranked.sum()) - ranked / ranked.sum()
        stays = before < self._top_p
        if self._top_k:
            stays[self._top_k :] = False
        kept = np.zeros(len(scaled), bool)
        kept[order[stays]] = True
        return kept


def with_parameters(model: Model, asked: Mapping[str, Any]) -> Any:
    """Return a model that draws with the parameters of a request that the batch knows nothing of."""
    chosen = {key: asked[key] for key in ("top_p", "top_k", "repetition_penalty") if key in asked}
    untouched = {"top_p": 1.0, "top_k": 0, "repetition_penalty": 1.0}
    return TruncatingModel(model, **chosen) if {**untouched, **chosen} != untouched else model
