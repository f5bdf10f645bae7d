"""How a page becomes a reply: its template, or the piece of it that a live page asks for."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from osmosis_ai.errors import NotFoundError, OsmosisError
from osmosis_ai.ui.numbers import MISSING, NOT_RECORDED
from osmosis_ai.ui.pages import templates
from osmosis_ai.ui.run_numbers import format_failed, format_rate, format_scored
from osmosis_ai.viewer.access import RenderedPage, Viewing
from osmosis_ai.viewer.source import SampleEntry

if TYPE_CHECKING:
    from jinja2 import Environment

TEMPLATES = Path(__file__).with_name("templates")


@lru_cache
def environment(*above: Path) -> Environment:
    """Return what renders the viewer's templates and the kit's, those of folders ``above`` them in their place."""
    made = templates(*above, TEMPLATES)
    made.filters |= {
        "preview": _preview,
        "pass_rate": format_rate,
        "scored": format_scored,
        "failed": format_failed,
    }
    return made


def _preview(text: str | None, sample: SampleEntry, some_are_kept: bool) -> str:
    """Return what was said; where nothing was and the sample did not end before, it is lost, or was not to be kept."""
    is_none = text is not None or (some_are_kept and sample.status != "success")
    return text or (MISSING if is_none else NOT_RECORDED)


def render(view: Viewing, page: RenderedPage, *, part: str | None = None) -> str:
    """Return a page, or the pieces of it whose names stand in ``part``, with commas between them."""
    values = {**page.values, "view": view, "shell": replace(view.shell, live=page.live), "root": view.root}
    if part is None:
        return environment().get_template(page.template).render(values)
    names = list(dict.fromkeys(part.split(",")))
    if strange := [name for name in names if name not in page.parts]:
        raise NotFoundError(f"this page has no part {strange[0]!r}.")
    return "".join(
        f'<div data-live="{name}">{environment().get_template(page.parts[name]).render(values)}</div>'
        for name in names
    )


def refused(error: OsmosisError, *, section: str = "") -> RenderedPage:
    """Return the error page, with the reason, the nearest names and a link back."""
    is_missing = isinstance(error, NotFoundError)
    return RenderedPage(
        "message.html",
        {
            "title": "Not found" if is_missing else "This cannot be shown",
            "problem": error.sentence,
            "hint": error.hint,
            "details": error.details if is_missing else {},
            "section": section,
        },
        status=404 if is_missing else 400,
    )
