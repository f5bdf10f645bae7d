"""What all charts are drawn with: scales, axes, marks; no script, no ``style`` attribute, colours by classes of ``kit.css``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import ceil, floor, log10
from typing import NamedTuple

from markupsafe import Markup, escape

from osmosis_ai.ui.text import visible

WIDTH, LEFT, RIGHT = 560, 60, 14
_COLOURS = 7
"""Of kit.css; the eighth series has the first colour again, and another shape."""

_LONGEST = 52
"""Characters of a title, which is larger in the drawing where the window is small."""
Written = Callable[[float | None], str]
"""How a number is written in the table under a chart."""


class ChartPoint(NamedTuple):
    """A number at its place, with its interval where there is one, and what it was taken over."""

    x: float
    y: float
    low: float | None = None
    high: float | None = None
    over: int | None = None
    hollow: bool = False

    @property
    def interval(self) -> tuple[float, float] | None:
        """Its two ends, where there are both."""
        return None if self.low is None or self.high is None else (self.low, self.high)


class ChartSeries(NamedTuple):
    """What belongs together in a chart, under one name."""

    name: str
    points: Sequence[ChartPoint]


class ChartMark(NamedTuple):
    """What happened at a place of the axis; equal kinds have equal shapes."""

    x: float
    kind: str
    text: str


class TimeSpan(NamedTuple):
    """Something that took its time."""

    name: str
    kind: str
    start_ms: float
    duration_ms: float


@dataclass(frozen=True, slots=True)
class SvgChart:
    """A chart and its numbers."""

    label: str
    svg: Markup
    legend: Sequence[tuple[str, Markup]]
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class PlotScale:
    """From a number to its place on the drawing, in its units."""

    low: float
    high: float
    first: float
    last: float

    def __call__(self, value: float) -> str:
        """Return the place with one decimal: a tenth of a pixel."""
        return f"{self.place(value):.1f}"

    def place(self, value: float) -> float:
        """Return the place; that of the nearer end for what lies beyond the scale."""
        inside = min(max(value, self.low), self.high) - self.low
        return self.first + inside / (self.high - self.low or 1.0) * (self.last - self.first)


@dataclass(frozen=True, slots=True)
class Drawing:
    """A drawing while it is made, over the scale of its axis."""

    x: PlotScale
    _parts: list[str] = field(default_factory=list)
    _legend: list[tuple[str, Markup]] = field(default_factory=list)

    @classmethod
    def between(cls, low: float, high: float, *, left: float = LEFT) -> Drawing:
        """Return an empty drawing whose x axis goes from ``low`` to ``high``."""
        return cls(PlotScale(low, high, left, WIDTH - RIGHT))

    def path(self, kind: str, d: str, said: str = "") -> None:
        """Add a path of a class, if there is any; a pointer on it reads what is ``said``."""
        inside = f"><title>{escape(visible(said))}</title></path>" if said else "/>"
        if d:
            self._parts.append(f'<path class="{kind}" d="{d}"{inside}')

    def text(self, kind: str, x: float | str, y: float | str, said: str) -> None:
        """Add words of a class."""
        self._parts.append(f'<text class="{kind}" x="{x}" y="{y}">{escape(visible(said))}</text>')

    def title(self, name: str, y: int) -> None:
        """Add a name above what it is of; of one that does not fit its end, which tells models apart."""
        shown = visible(name)
        self.text("title", LEFT, y, shown if len(shown) <= _LONGEST else f"…{shown[-_LONGEST:]}")

    def grid(self, y: PlotScale, values: Sequence[float], written: Callable[[float], str]) -> None:
        """Add a line across the drawing at each of ``values``, with its number."""
        for value in values:
            self.path("grid", f"M{LEFT} {y(value)}H{WIDTH - RIGHT}")
            self.text("tick end", LEFT - 6, f"{y.place(value) + 4:.1f}", written(value))

    def mark(self, place: int, x: float, y: float, *, hollow: bool = False) -> None:
        """Add a point of the series at ``place``."""
        self._parts.append(mark(place, x, y, hollow=hollow))

    def key(self, name: str, drawn: str) -> None:
        """Add to the legend a name behind what it is drawn with."""
        shown = Markup(f'<svg viewBox="0 0 14 14" aria-hidden="true">{drawn}</svg>')
        self._legend.append((name, shown))

    def name(self, series: Sequence[ChartSeries]) -> None:
        """Add each of ``series`` to the legend, with its mark."""
        for place, each in enumerate(series):
            self.key(each.name, mark(place, 7, 7))

    def chart(
        self,
        label: str,
        axis: str,
        bottom: int,
        head: Sequence[str],
        rows: Sequence[Sequence[str]],
        *,
        notes: Sequence[str] = (),
        places: Sequence[float] | None = None,
        is_pointed_at: bool = False,
    ) -> SvgChart:
        """Return the chart of what was drawn, with its axis below."""
        x = self.x
        places = ticks(x.low, x.high) if places is None else places
        ends = "".join(f"M{x(place)} {bottom}v5" for place in places)
        self.path("grid", f"M{LEFT} {bottom}H{WIDTH - RIGHT}{ends}")
        for place in places:
            self.text("tick middle", x(place), bottom + 18, f"{place:g}")
        self.text("axis middle", (LEFT + WIDTH - RIGHT) // 2, bottom + 36, axis)
        along = f' data-x="{x.low:g} {x.high:g} {x.first:g} {x.last:g}"' if is_pointed_at else ""
        svg = Markup(
            f'<svg viewBox="0 0 {WIDTH} {bottom + 42}" role="img" aria-label="{escape(visible(label))}"{along}>'
            f"{''.join(self._parts)}</svg>"
        )
        return SvgChart(label, svg, self._legend, head, rows, notes)


def ticks(low: float, high: float) -> list[float]:
    """Return about five round numbers from ``low`` to ``high``: steps of 1, 2 or 5 times a power of ten."""
    rough = (high - low) / 5 or 1.0
    power = 10.0 ** floor(log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * 0.999)
    first, last = ceil(low / step - 1e-9), floor(high / step + 1e-9)
    # The sum takes the sign from a zero.
    return [round(place * step, 12) + 0.0 for place in range(first, last + 1)]


_OUTLINES = (
    "m-4.5 0a4.5 4.5 0 1 0 9 0a4.5 4.5 0 1 0-9 0Z",
    "m0-6l6 6l-6 6l-6-6Z",
    "m-4.5-4.5h9v9h-9Z",
    "m0-6l5.5 10h-11Z",
    "m-2-6h4v4h4v4h-4v4h-4v-4h-4v-4h4Z",
)


def colour(place: int) -> int:
    """Return which of the colours the series at ``place`` has."""
    return place % _COLOURS + 1


def mark(place: int, x: float, y: float, *, hollow: bool = False) -> str:
    """Return the mark of the series at ``place``: its shape tells it as well as its colour."""
    filled = f"line-{colour(place)} hollow" if hollow else f"fill-{colour(place)}"
    return f'<path class="{filled}" d="M{x:.1f} {y:.1f}{_OUTLINES[place % len(_OUTLINES)]}"/>'
