"""Base class for user-written graders."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from .context import GraderContext
from .types import GraderConfig


class Grader(ABC):
    """Base class for a grader. Each rollout is graded by a new instance."""

    def __init__(self, config: GraderConfig | None = None) -> None:
        self.config = config

    @abstractmethod
    async def grade(self, ctx: GraderContext) -> Any:
        """Score ``ctx.sample`` with ``ctx.set_reward``. The return value is ignored.

        Set ``ctx.sample.remove_sample = True`` to exclude a sample that cannot be scored fairly.
        """
