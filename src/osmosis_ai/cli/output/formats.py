"""How values look in a terminal: those of every page (:mod:`osmosis_ai.ui.numbers`), and text that drives no terminal."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise, zip_longest
from typing import TYPE_CHECKING, TextIO

from osmosis_ai.ui.numbers import MISSING as MISSING
from osmosis_ai.ui.numbers import compact as compact
from osmosis_ai.ui.numbers import count as count
from osmosis_ai.ui.numbers import date as date
from osmosis_ai.ui.numbers import duration as duration
from osmosis_ai.ui.numbers import interval as interval
from osmosis_ai.ui.numbers import iso as iso
from osmosis_ai.ui.numbers import money as money
from osmosis_ai.ui.numbers import number as number
from osmosis_ai.ui.numbers import percent as percent
from osmosis_ai.ui.numbers import percent_range as percent_range
from osmosis_ai.ui.numbers import size as size
from osmosis_ai.ui.text import UNSEEN

if TYPE_CHECKING:
    from pathlib import Path

    from osmosis_ai.evaluation.hooks import ProgressSnapshot

_LEVELS = "▁▂▃▄▅▆▇█"
_WIDEST_COMMAND = 60
_TO_SPACES = {ord("\t"): " ", ord("\n"): " ", ord("\r"): " "}
# Terminals act on control characters, and data must not drive the terminal it is shown on. Halves of surrogate pairs
# are bytes of file names, which streams write as they are to be typed.
_CONTROLS = {
    **{code: mark for code, mark in UNSEEN.items() if not 0xD800 <= code <= 0xDFFF},
    **{code: f"\\x{code:02x}" for code in [*range(0x20), *range(0x7F, 0xA0)] if chr(code) not in "\t\n"},
}
# https://docs.github.com/actions/reference/workflows-and-actions/workflow-commands: `::error::` and `##[error]`
_COMMAND = re.compile(r"^\s*::|##\[", re.MULTILINE)


def literal(text: str) -> str:
    """Return ``text`` safe to show: controls (but tabs and newlines) spelled out, marks for what is not seen."""
    shown = spelled_out(text)
    if not os.environ.get("GITHUB_ACTIONS"):
        return shown
    return _COMMAND.sub(lambda command: f"{command[0][:-1]}\u200b{command[0][-1]}", shown)


def spelled_out(text: str) -> str:
    """Return ``text`` with what does not show, or turns text around, spelled out: the text of a command, too."""
    return text.replace("\r\n", "\n").translate(_CONTROLS)


def one_line(text: str) -> str:
    """Return ``text`` safe to show and without line breaks or tabs."""
    return literal(text.replace("\r\n", "\n").translate(_TO_SPACES))


def shortened(text: str, longest: int) -> str:
    """Return ``text`` with at most ``longest`` characters."""
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def amount(completed: float, total: float | None, unit: str) -> str:
    """Return ``40/400 samples`` or ``1.5 MB of 3.0 GB``."""
    if unit == "bytes":
        done = size(int(completed))
        return done if total is None else f"{done} of {size(int(total))}"
    done = count(int(completed))
    counted = done if total is None else f"{done}/{count(int(total))}"
    return f"{counted} {unit}".rstrip()


def sparkline(values: Sequence[float], *, width: int) -> str:
    """Return ``values`` as at most ``width`` bars, each the mean of its share of them, from least to greatest."""
    if not values:
        return ""
    count = min(width, len(values))
    edges = [position * len(values) // count for position in range(count + 1)]
    # Sums and differences of the largest floats would overflow.
    scale = 4.0 * len(values)
    means = [
        sum(value / scale for value in values[start:end]) / (end - start) for start, end in pairwise(edges)
    ]
    low, high = min(means), max(means)
    if high == low:
        return _LEVELS[0] * count
    top = len(_LEVELS) - 1
    return "".join(_LEVELS[round((mean - low) / (high - low) * top)] for mean in means)


def aligned(title: str, rows: Iterable[Sequence[str]]) -> list[str]:
    """Return a title and indented rows with aligned columns; nothing without rows."""
    listed = list(rows)
    if not listed:
        return []
    widths = [max(map(len, column)) for column in zip_longest(*listed, fillvalue="")]
    lines = [
        "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=False)) for row in listed
    ]
    return [title, *(f"  {line}".rstrip() for line in lines)]


def next_block(steps: Iterable[tuple[str, str]]) -> list[str]:
    """Return a blank line and the aligned lines of ``Next:``: for each purpose and command (or URL), the command first."""
    listed = list(steps)
    if not listed:
        return []
    width = max((len(command) for _, command in listed if len(command) <= _WIDEST_COMMAND), default=0)
    heads = ["Next:", *[""] * (len(listed) - 1)]
    lines = [
        f"{head:<7}{command:<{width}}    {purpose}"
        for head, (purpose, command) in zip(heads, listed, strict=True)
    ]
    return ["", *lines]


def shown_path(path: Path) -> str:
    """Return ``path`` relative to the working directory when it is below it."""
    try:
        return str(path.relative_to(path.cwd()))
    except ValueError:
        return str(path)


def has_colour(stream: TextIO) -> bool:
    """Whether colours may be written to ``stream`` (https://no-color.org, https://force-color.org)."""
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR"):
        return True
    return is_terminal(stream) and os.environ.get("TERM") != "dumb"


def is_terminal(stream: TextIO | None) -> bool:
    """Whether somebody sees what is written to ``stream``."""
    try:
        return stream is not None and stream.isatty()
    except ValueError:  # a closed stream
        return False


def spent(snapshot: ProgressSnapshot, *, failed: str = "failed") -> Iterator[str]:
    """Yield failures, usage and pace so far; empty entries are left out."""
    if snapshot.failed:
        yield f"{count(snapshot.failed)} {failed}"
    if snapshot.tokens:
        yield f"{count(snapshot.tokens)} tokens"
    if snapshot.cost_usd:
        yield money(snapshot.cost_usd)
    rate = snapshot.rate_per_s
    if rate:
        yield f"{rate:.1f}/s" if rate >= 1 else f"{rate * 60:.1f}/min"
