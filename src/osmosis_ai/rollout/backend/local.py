"""The local backend under its import paths of the 0.3 SDK."""

import sys

from osmosis_ai.rollout import backend
from osmosis_ai.rollout.backend import LocalBackend

__all__ = ["LocalBackend"]

sys.modules[f"{__name__}.backend"] = backend
