"""Choose a run's isolation from the machine's setting, the run's request and the machine's abilities.

A run may ask for more isolation than the machine's setting, never for less.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from osmosis_ai.errors import OsmosisError
from osmosis_ai.sandbox.network import Network
from osmosis_ai.sandbox.self_test import SandboxCapability

IsolationSetting = Literal["auto", "required", "off"]
ISOLATION_ENV = "OSMOSIS_ISOLATION"
_NO_NETWORK = '`network = "none"` needs a sandbox'
_BY_STRICTNESS: tuple[IsolationSetting, ...] = ("off", "auto", "required")


class IsolationUnavailableError(OsmosisError):
    """A sandbox is required but unavailable on this machine."""

    def __init__(self, why: str, problem: str, remedy: str | None, *, where: str = "here") -> None:
        super().__init__(f"{why}, and rollouts cannot be sandboxed {where}: {problem}.", hint=remedy)
        self.problem = problem


@dataclass(frozen=True)
class Isolation:
    level: Literal["bubblewrap", "none"]
    reason: str = f"{ISOLATION_ENV}=off"
    remedy: str | None = None

    @property
    def is_sandboxed(self) -> bool:
        return self.level == "bubblewrap"

    @property
    def words(self) -> str:
        return self.level if self.is_sandboxed else f"none: {self.reason}"

    @property
    def warning(self) -> str | None:
        """Explain why a wanted sandbox is missing; None otherwise."""
        if self.is_sandboxed or self.remedy is None:
            return None
        return (
            f"rollouts cannot be sandboxed here: {self.reason}. "
            f"They can read what the user of this machine can; to fix this: {self.remedy}."
        )


def isolation_setting(environ: Mapping[str, str]) -> IsolationSetting:
    """Return ``OSMOSIS_ISOLATION``, by default ``auto``; raises OsmosisError."""
    written = environ.get(ISOLATION_ENV, "").strip() or "auto"
    if written not in _BY_STRICTNESS:
        raise OsmosisError(f"{ISOLATION_ENV} must be one of {', '.join(_BY_STRICTNESS)}, not '{written}'.")
    return written


def stricter(machine: IsolationSetting, asked: IsolationSetting | None) -> IsolationSetting:
    """Return the stricter one of the machine's setting and the run's request."""
    return max(machine, asked or machine, key=_BY_STRICTNESS.index)


def choose_isolation(
    wanted: IsolationSetting, capability: SandboxCapability, network: Network = "host", *, where: str = "here"
) -> Isolation:
    """Return the isolation of a run.

    Raises:
        IsolationUnavailableError: A sandbox is required and does not work ``where``.
    """
    if wanted == "off":
        return Isolation("none")
    if capability.works:
        return Isolation("bubblewrap")
    if wanted == "required":
        why = "isolation is required" if network == "host" else _NO_NETWORK
        raise IsolationUnavailableError(why, capability.problem or "", capability.remedy, where=where)
    return Isolation("none", capability.problem or "", capability.remedy or "")
