"""How a page is made: templates that escape, styles and scripts with their digests, the policy they stand under."""

from __future__ import annotations

import hashlib
from base64 import b64encode
from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from osmosis_ai.ui import numbers
from osmosis_ai.ui.assets import KIT, asset_name
from osmosis_ai.ui.highlighting import code
from osmosis_ai.ui.markdown import markdown
from osmosis_ai.ui.terminal_text import ansi
from osmosis_ai.ui.text import visible

if TYPE_CHECKING:
    from jinja2 import Environment


def templates(*folders: Path) -> Environment:
    """Return the environment that renders templates of ``folders`` and of the kit."""
    from jinja2 import DictLoader, Environment, StrictUndefined

    environment = Environment(
        loader=DictLoader(_sources((*folders, KIT))),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_shown,
    )
    environment.globals["asset"] = asset_name
    environment.filters.update({each.__name__: each for each in _FILTERS})
    return environment


def _sources(folders: Sequence[Path]) -> dict[str, str]:
    """Return all templates, of two of a name the first: those of an installation that changes later would not fit us."""
    return {
        path.relative_to(folder).as_posix(): path.read_text(encoding="utf-8")
        for folder in reversed(folders)
        for path in folder.rglob("*.html")
    }


def _shown(value: Any) -> Any:
    return visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def breakable(name: str) -> Markup:
    """Return a name that may go on in the next line after a slash."""
    return Markup("/<wbr>").join(visible(part) for part in name.split("/"))


def moment(when: datetime | str | None) -> Markup | str:
    """Return a moment as an element that says it in UTC and holds it for programs."""
    if when is None:
        return numbers.MISSING
    iso = visible(numbers.iso(when))
    shown = visible(numbers.date(when, zone=timezone.utc))
    return Markup('<time datetime="{}">{}</time>').format(iso, shown)


def duration_ms(milliseconds: float | None) -> str:
    """Return a number of milliseconds as :func:`osmosis_ai.ui.numbers.duration` does seconds."""
    return numbers.duration(None if milliseconds is None else milliseconds / 1000)


_FILTERS: Sequence[Callable[..., Any]] = (
    *(ansi, breakable, code, markdown, moment, duration_ms, numbers.compact, numbers.count),
    *(numbers.duration, numbers.money, numbers.number, numbers.percent, numbers.size),
)


def inline(*files: Path) -> Markup:
    """Return files of ours as they stand in one ``style`` or ``script`` element."""
    return Markup("\n".join(file.read_text(encoding="utf-8") for file in files))


def one_file_policy(style: str) -> str:
    """Return the policy of a page that is one file: that style, and nothing else from anywhere."""
    return f"default-src 'none'; style-src {_digest(style)}; base-uri 'none'; form-action 'none'"


def _digest(text: str) -> str:
    return f"'sha256-{b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
