"""What took how long, one thing after another: a waterfall."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from markupsafe import escape

from osmosis_ai.ui import numbers
from osmosis_ai.ui.charts.drawing import (
    COLOURS,
    RIGHT,
    WIDTH,
    PlotScale,
    SvgChart,
    key,
    plotted,
)
from osmosis_ai.ui.text import visible

_NAMES = 150.0
_ROW = 18.0
_MOST = 200


class TimeSpan(NamedTuple):
    """Something that took its time.

    Attributes:
        kind: equal ones have equal colours.
        start_ms: after the first began; None where that is not known.
        duration_ms: None where that is not known.
    """

    name: str
    kind: str
    start_ms: float | None
    duration_ms: float | None


def waterfall(spans: Sequence[TimeSpan], *, label: str) -> SvgChart:
    """Return a row for each of ``spans``, of the first 200; one whose times are not known stands in the table alone."""
    timed = [
        (each, each.start_ms, each.duration_ms)
        for each in spans
        if each.start_ms is not None and each.duration_ms is not None
    ]
    end_s = max((start + lasts for _, start, lasts in timed), default=1.0) / 1000 or 1e-3
    x = PlotScale(0.0, end_s, _NAMES, WIDTH - RIGHT)
    kinds = list(dict.fromkeys(each.kind for each in spans))
    parts = []
    for row, (each, start, lasts) in enumerate(timed[:_MOST]):
        y = row * _ROW
        left = x.place(start / 1000)
        # At least a pixel: what was quick happened as well.
        width = max(x.place((start + lasts) / 1000) - left, 1.0)
        said = escape(visible(f"{each.name}: {numbers.duration(lasts / 1000)}, {each.kind}"))
        parts.append(
            f'<text class="tick end" x="{_NAMES - 8:g}" y="{y + 13:g}">{escape(visible(each.name)[:22])}</text>'
            f'<path class="fill-{_colour(kinds, each.kind)}" d="M{left:.1f} {y + 3:g}h{width:.1f}v12h{-width:.1f}Z">'
            f"<title>{said}</title></path>"
        )
    bottom = _ROW * min(len(timed), _MOST) + 4
    keys = [(kind, key(f'<path class="fill-{_colour(kinds, kind)}" d="M1 2h12v10h-12Z"/>')) for kind in kinds]
    return SvgChart(
        label,
        plotted(parts, x, bottom, "seconds", label),
        keys,
        ("What", "Kind", "Began after", "Took"),
        [[each.name, each.kind, _written(each.start_ms), _written(each.duration_ms)] for each in spans],
        [f"The drawing has the first {_MOST} of {len(timed):,}."] if len(timed) > _MOST else [],
    )


def _written(ms: float | None) -> str:
    return numbers.NOT_RECORDED if ms is None else numbers.duration(ms / 1000)


def _colour(kinds: Sequence[str], kind: str) -> int:
    return kinds.index(kind) % COLOURS + 1
