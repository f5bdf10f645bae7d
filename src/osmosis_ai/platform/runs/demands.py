"""The operator's requirements for every machine that executes runs.

Remote machines have their own settings, so these requirements are sent with each run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from osmosis_ai.config.execution import ExecutionSection, read_execution
from osmosis_ai.platform.config import PlatformConfig


@dataclass(frozen=True, slots=True)
class Demands:
    """What holds for runs, whatever their configs ask for."""

    no_network: bool = False
    sandbox: bool = False

    @classmethod
    def of(cls, config: PlatformConfig) -> Demands:
        """Return what the settings of a platform demand."""
        return cls(no_network=config.network == "none", sandbox=config.isolation == "required")

    def read(self, request: Mapping[str, Any]) -> ExecutionSection:
        """Return what a run asks for in its ``request``, and with it what is demanded of it."""
        asked = read_execution(request.get("advanced_config"))
        more: dict[str, Any] = {}
        if self.no_network:
            more["network"] = "none"
        if self.sandbox and asked.pool is None:
            more["isolation"] = "required"
        return asked.model_copy(update=more) if more else asked
