"""The grader a user writes: it looks at a sample and sets its reward."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from .context import GraderContext
from .types.config import GraderConfig


class Grader(ABC):
    """Scores samples. A fresh instance grades each rollout."""

    def __init__(self, config: GraderConfig | None = None) -> None:
        self.config = config

    @abstractmethod
    async def grade(self, ctx: GraderContext) -> Any:
        """Score ``ctx.sample`` with ``ctx.set_reward``; what this returns is ignored.

        A sample that cannot be scored fairly is taken out with ``ctx.sample.remove_sample = True``.
        """
