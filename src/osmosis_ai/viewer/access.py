"""Who looks at what: one visitor's request, and the page that answers it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, ParamSpec, Protocol, TypeVar
from urllib.parse import quote

from osmosis_ai.training.runs.curves import SavedAdapter
from osmosis_ai.ui.shell import LiveChanges, NavItem, ShellView
from osmosis_ai.viewer.live import is_over
from osmosis_ai.viewer.local_runs import RunKind
from osmosis_ai.viewer.shared_reads import SharedReads
from osmosis_ai.viewer.source import Capability, RunEntry, RunSource

Asked = ParamSpec("Asked")
ReadT = TypeVar("ReadT")

SECTIONS: Mapping[RunKind, str] = {"eval": "evals", "training": "training", "rubric": "rubrics"}
"""The part of an address below which the runs of a kind have their pages."""

LISTS: Mapping[RunKind, str] = {
    "eval": "Evaluations",
    "training": "Training runs",
    "rubric": "Rubric results",
}
"""What the lists of runs are called."""


@dataclass(frozen=True, slots=True)
class RunButton:
    """Something that a visitor can change."""

    text: str
    href: str
    refused: str | None = None
    posts: bool = False


class RunActions(Protocol):
    """What a visitor can change in a place of runs."""

    def buttons(self, run: RunEntry) -> Sequence[RunButton]:
        """Return the buttons of a run."""

    def adapter_buttons(self, adapter: SavedAdapter) -> Sequence[RunButton]:
        """Return the buttons of an adapter that a run has saved."""


@dataclass(frozen=True, slots=True)
class Viewing:
    """One visitor's request."""

    source: RunSource
    shell: ShellView
    root: str = ""
    actions: RunActions | None = None
    of_validation: bool = False
    is_local: bool = False
    visitor: str = ""
    allowed: Callable[[], bool] | None = None
    parts: frozenset[str] | None = None
    reads: SharedReads | None = None

    def can(self, capability: Capability) -> bool:
        """Return whether the source has a capability; pages leave out what it lacks."""
        return capability in self.source.capabilities

    @property
    def sampled(self) -> RunKind:
        """Of which kind the runs are whose samples are shown."""
        return "training" if self.of_validation else "eval"

    def wants(self, part: str) -> bool:
        """Tell whether a piece of the page is asked for: what no other piece shows need not be worked out."""
        return self.parts is None or part in self.parts

    def read(self, read: Callable[Asked, ReadT], *asked: Asked.args, **how: Asked.kwargs) -> ReadT:
        """Return what a method of the source reads, once for all who look at the run while it stands as it does."""
        if self.reads is None:
            return read(*asked, **how)
        key = (read.__name__, asked, tuple(sorted(how.items())))
        return self.reads.once(key, lambda: read(*asked, **how))

    def live(self, kind: RunKind, run: str) -> LiveChanges | None:
        """Return the changes of a run, which its page follows; None where there are none to follow."""
        if self.parts is not None or not self.can("changes"):
            return None
        now = self.source.changes(kind, run)
        return LiveChanges(self.run_href(kind, run, "changes"), "" if is_over(now) else now.cursor)

    def href(self, *segments: str | int) -> str:
        """Return the address of a page: ``href("evals", name, "samples")``; without segments that of the first."""
        path = "".join(f"/{quote(str(segment), safe='', errors='replace')}" for segment in segments)
        return self.root + path or "/"

    def run_href(self, kind: RunKind, name: str, *below: str | int) -> str:
        """Return the address of a run's page, or of one below it."""
        return self.href(SECTIONS[kind], name, *below)

    def crumbs(self, kind: RunKind, name: str | None = None) -> Sequence[NavItem]:
        """Return the way back from a page below a list of runs, or below the run ``name``."""
        way = [NavItem(LISTS[kind], self.href(SECTIONS[kind]))]
        return [*way, NavItem(name, self.run_href(kind, name))] if name is not None else way

    def sample_href(self, run: str, row: int, attempt: int) -> str:
        """Return the address of a sample's page."""
        below = "validation" if self.of_validation else "samples"
        return self.run_href(self.sampled, run, below, f"{row}.{attempt}")


class Tile(NamedTuple):
    """A number at the top of a run's page, with what qualifies it."""

    label: str
    value: str
    detail: str = ""
    href: str = ""


@dataclass(frozen=True, slots=True)
class RenderedPage:
    """A page before it is written: a template, and what it shows."""

    template: str
    values: Mapping[str, Any]
    status: int = 200
    parts: Mapping[str, str] = field(default_factory=dict)
    live: LiveChanges | None = None
