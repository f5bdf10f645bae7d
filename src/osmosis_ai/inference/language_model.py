"""Interface of a servable network.

The batch assigns sequences to slots. A network turns token ids into logits and samples from them. The NumPy (``model``)
and torch (``torch_model``) networks sample the same tokens from equal logits, because both use ``sampling.uniforms``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

# Named by what they hold for whom: only the network that made them looks inside.
CacheT = TypeVar("CacheT", bound="Cache")
LogitsT = TypeVar("LogitsT")


class Dimensions(Protocol):
    """What others need to know of a network's shape."""

    @property
    def max_positions(self) -> int:
        """The longest sequence, prompt included, in tokens."""

    @property
    def end_token_ids(self) -> frozenset[int]:
        """The tokens that end a turn."""


class Cache(Protocol):
    """Keys and values of a fixed number of sequences, one to a slot."""

    def copy(self, source: int, target: int, length: int) -> None:
        """Give slot ``target`` the first ``length`` positions of slot ``source``."""


@dataclass(frozen=True, slots=True)
class SamplingRows:
    """How each of R rows draws its token."""

    temperatures: Floats
    top_ps: Floats
    streams: NDArray[np.uint64]
    positions: Ints
    top_counts: Sequence[int]


@dataclass(frozen=True, slots=True)
class Drawn:
    """R drawn tokens, their log-probabilities before ``top_p``, and the likeliest of each row."""

    tokens: list[int]
    logprobs: list[float]
    likeliest: list[tuple[tuple[int, float], ...]]


class LanguageModel(Protocol[CacheT, LogitsT]):
    """A causal language model. One thread at a time uses it."""

    @property
    def config(self) -> Dimensions:
        """Its dimensions."""

    @property
    def fingerprint(self) -> str:
        """Hexadecimal; two models with the same one were loaded from the same weights."""

    def new_cache(self, slots: int) -> CacheT:
        """Make room for the keys and values of ``slots`` sequences."""

    def extend(self, cache: CacheT, rows: slice, ids: Ints, starts: Ints, wanted: Ints) -> LogitsT:
        """Append R x S right-padded tokens to the slots ``rows``; R x V logits after the wanted ones."""

    def draw(self, logits: LogitsT, sources: Sequence[int] | slice, sampling: SamplingRows) -> Drawn:
        """Draw one token for each row of ``logits[sources]``."""

    def load_weights(self, weights: Mapping[str, Any]) -> None:
        """Replace only the named tensors, atomically.

        Raises:
            OsmosisError: A name is unknown or a shape is wrong.
        """
