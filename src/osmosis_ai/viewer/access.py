"""The context of a request, and the page that answers it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol
from urllib.parse import quote

from osmosis_ai.errors import NotFoundError
from osmosis_ai.training.runs.curves import SavedAdapter
from osmosis_ai.ui.numbers import MISSING, NOT_RECORDED
from osmosis_ai.ui.pages import LiveChanges, NavItem, ShellView, templates
from osmosis_ai.ui.run_numbers import format_failed, format_rate, format_scored
from osmosis_ai.viewer.local_runs import RunKind
from osmosis_ai.viewer.source import RunEntry, RunSource, SampleEntry

if TYPE_CHECKING:
    from jinja2 import Environment


SECTIONS: Mapping[RunKind, str] = {"eval": "evals", "training": "training", "rubric": "rubrics"}
LISTS: Mapping[RunKind, str] = {
    "eval": "Evaluations",
    "training": "Training runs",
    "rubric": "Rubric results",
}


class RunButton(NamedTuple):
    text: str
    href: str
    refused: str | None = None
    posts: bool = False


class RunActions(Protocol):
    def buttons(self, run: RunEntry) -> Sequence[RunButton]: ...

    def adapter_buttons(self, adapter: SavedAdapter) -> Sequence[RunButton]: ...


@dataclass(frozen=True, slots=True)
class Viewing:
    source: RunSource
    shell: ShellView
    root: str = ""
    actions: RunActions | None = None
    is_local: bool = False
    parts: frozenset[str] | None = None

    def wants(self, part: str) -> bool:
        """Whether the reply includes this part; others need not be computed."""
        return self.parts is None or part in self.parts

    def live(self, kind: RunKind, run: str) -> LiveChanges:
        """Return the live updates of a run; without a cursor if it does not change."""
        now = self.source.state(kind, run)
        return LiveChanges(self.run_href(kind, run, "changes"), "" if now.ended else now.cursor)

    def href(self, *segments: str | int) -> str:
        """Return the address of a page: ``href("evals", name, "samples")``."""
        path = "".join(f"/{quote(str(segment), safe='', errors='replace')}" for segment in segments)
        return self.root + path or "/"

    def run_href(self, kind: RunKind, name: str, *below: str | int) -> str:
        return self.href(SECTIONS[kind], name, *below)

    def crumbs(self, kind: RunKind, name: str | None = None) -> Sequence[NavItem]:
        way = [NavItem(LISTS[kind], self.href(SECTIONS[kind]))]
        return [*way, NavItem(name, self.run_href(kind, name))] if name is not None else way

    def sample_href(self, run: str, row: int, attempt: int, kind: RunKind = "eval") -> str:
        below = "validation" if kind == "training" else "samples"
        return self.run_href(kind, run, below, f"{row}.{attempt}")


class Tile(NamedTuple):
    label: str
    value: str
    detail: str = ""
    href: str = ""


@dataclass(frozen=True, slots=True)
class RenderedPage:
    template: str
    values: Mapping[str, Any]
    status: int = 200
    parts: Mapping[str, str] = field(default_factory=dict)
    is_live: bool = True


TEMPLATES = Path(__file__).with_name("templates")


@lru_cache
def environment(*above: Path) -> Environment:
    """Return the template environment; ``above`` are folders that override the viewer's templates."""
    made = templates(*above, TEMPLATES)
    made.filters |= {
        "preview": _preview,
        "pass_rate": format_rate,
        "scored": format_scored,
        "failed": format_failed,
    }
    return made


def _preview(text: str | None, sample: SampleEntry, some_are_kept: bool) -> str:
    is_none = text is not None or (some_are_kept and sample.status != "success")
    return text or (MISSING if is_none else NOT_RECORDED)


def render(view: Viewing, page: RenderedPage, *, part: str | None = None) -> str:
    """Return a page, or only its comma-separated parts that ``part`` requests."""
    values = {
        **page.values,
        "view": view,
        "shell": view.shell if page.is_live else replace(view.shell, live=None),
        "root": view.root,
    }
    if part is None:
        return environment().get_template(page.template).render(values)
    names = list(dict.fromkeys(part.split(",")))
    if strange := [name for name in names if name not in page.parts]:
        raise NotFoundError(f"this page has no part {strange[0]!r}.")
    return "".join(
        f'<div data-live="{name}">{environment().get_template(page.parts[name]).render(values)}</div>'
        for name in names
    )
