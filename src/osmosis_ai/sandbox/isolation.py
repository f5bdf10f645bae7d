"""Choose a run's isolation from the machine's setting, the run's request and the machine's abilities.

A run may ask for more isolation than the machine's setting, never for less.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from osmosis_ai.errors import OsmosisError
from osmosis_ai.sandbox.capability import SandboxCapability
from osmosis_ai.sandbox.network import Network

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
    """What a run got."""

    level: Literal["bubblewrap", "none"]
    reason: str = f"{ISOLATION_ENV}=off"
    remedy: str | None = None

    @property
    def is_sandboxed(self) -> bool:
        """Whether the run's programs are sandboxed."""
        return self.level == "bubblewrap"

    @property
    def words(self) -> str:
        """What a run's record says of it."""
        return self.level if self.is_sandboxed else f"none: {self.reason}"

    @property
    def warning(self) -> str | None:
        """Why there is none although one was wanted, in sentences."""
        if self.is_sandboxed or self.remedy is None:
            return None
        return f"rollouts cannot be sandboxed here: {self.reason}. They can read what the user of this machine can; to fix this: {self.remedy}."


def isolation_setting(environ: Mapping[str, str]) -> IsolationSetting:
    """Return what ``OSMOSIS_ISOLATION`` says; ``auto`` without it."""
    written = environ.get(ISOLATION_ENV, "").strip() or "auto"
    known: IsolationSetting
    for known in get_args(IsolationSetting):
        if written == known:
            return known
    raise OsmosisError(f"{ISOLATION_ENV} must be one of {', '.join(_BY_STRICTNESS)}, and is '{written}'.")


def stricter(machine: IsolationSetting, asked: IsolationSetting | None) -> IsolationSetting:
    """Return what counts: the machine's setting, or what a run asks for where that is more."""
    return max(machine, asked or machine, key=_BY_STRICTNESS.index)


def choose_isolation(
    wanted: IsolationSetting,
    capability: SandboxCapability,
    network: Network = "host",
    *,
    where: str = "here",
) -> Isolation:
    """Return what a run gets."""
    if wanted == "off":
        return Isolation("none")
    if capability.works:
        return Isolation("bubblewrap")
    if wanted == "required":
        why = "isolation is required" if network == "host" else _NO_NETWORK
        raise IsolationUnavailableError(why, capability.problem or "", capability.remedy, where=where)
    return Isolation("none", capability.problem or "", capability.remedy or "")
