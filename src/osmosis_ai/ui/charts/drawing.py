"""What all charts are drawn with: scales, axes, marks; no script, no ``style`` attribute, colours by classes of ``kit.css``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import ceil, floor, log10
from typing import NamedTuple

from markupsafe import Markup, escape

from osmosis_ai.ui.text import visible

# Colours in kit.css; the eighth series has the first colour again, and another shape.
COLOURS = 7
WIDTH = 560.0
LEFT, RIGHT = 44.0, 14.0


class ChartPoint(NamedTuple):
    """A number at its place, with its interval where there is one, and what it was taken over.

    A ``hollow`` one stands on too little to be read like the others.
    """

    x: float
    y: float
    low: float | None = None
    high: float | None = None
    over: int | None = None
    hollow: bool = False


class ChartSeries(NamedTuple):
    """What belongs together in a chart, under one name."""

    name: str
    points: Sequence[ChartPoint]


@dataclass(frozen=True, slots=True)
class SvgChart:
    """A chart and its numbers.

    Attributes:
        label: what it shows, for who does not see it.
        svg: the drawing.
        legend: (name, key) of each series; empty where names stand in the drawing.
        head, rows: the table of its numbers; the first cell of a row names it.
        notes: what the drawing says besides, in sentences.
    """

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
        span = self.high - self.low or 1.0
        return self.first + (min(max(value, self.low), self.high) - self.low) / span * (
            self.last - self.first
        )


def plotted(
    parts: Iterable[str],
    x: PlotScale,
    bottom: float,
    axis: str,
    label: str,
    *,
    places: Sequence[float] | None = None,
    is_pointed_at: bool = False,
) -> Markup:
    """Return the drawing of ``parts`` over its axis.

    Args:
        parts: what is drawn.
        x: the scale of the axis.
        bottom: where it lies.
        axis: its name.
        label: what the drawing shows, for who does not see it.
        places: where the axis has numbers; round ones by default.
        is_pointed_at: whether it says where its numbers lie, so that a module can point at them.
    """
    along = f' data-x="{x.low:g} {x.high:g} {x.first:g} {x.last:g}"' if is_pointed_at else ""
    return Markup(
        f'<svg viewBox="0 0 {WIDTH:g} {bottom + 42:g}" role="img" aria-label="{escape(visible(label))}"{along}>'
        + "".join(parts)
        + _x_axis(x, bottom, axis, ticks(x.low, x.high) if places is None else places)
        + "</svg>"
    )


def title(name: str, y: float) -> str:
    """Return a name above what it is of, cut to fit the drawing."""
    return f'<text class="title" x="{LEFT:g}" y="{y:g}">{short(name)}</text>'


def grid_rows(y: PlotScale, values: Sequence[float], written: Callable[[float], str]) -> str:
    """Return a line across the drawing at each of ``values``, with its number."""
    return "".join(
        f'<path class="grid" d="M{LEFT:g} {y(value)}H{WIDTH - RIGHT:g}"/>'
        f'<text class="tick end" x="{LEFT - 6:g}" y="{y.place(value) + 4:.1f}">{written(value)}</text>'
        for value in values
    )


def _x_axis(x: PlotScale, bottom: float, name: str, places: Sequence[float]) -> str:
    """Return the axis below a drawing: its line, numbers at ``places``, its name."""
    ends = f"M{LEFT:g} {bottom:g}H{WIDTH - RIGHT:g}" + "".join(
        f"M{x(place)} {bottom:g}v5" for place in places
    )
    texts = "".join(
        f'<text class="tick middle" x="{x(place)}" y="{bottom + 18:g}">{place:g}</text>' for place in places
    )
    middle = (LEFT + WIDTH - RIGHT) / 2
    named = f'<text class="axis middle" x="{middle:g}" y="{bottom + 36:g}">{escape(visible(name))}</text>'
    return f'<path class="grid" d="{ends}"/>{texts}{named}'


def ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Return round numbers from ``low`` to ``high``: steps of 1, 2 or 5 times a power of ten."""
    rough = (high - low) / about or 1.0
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


def mark(place: int, x: float, y: float, *, hollow: bool = False) -> str:
    """Return the mark of the series at ``place``: its shape tells it as well as its colour."""
    filled = f"line-{place % COLOURS + 1} hollow" if hollow else f"fill-{place % COLOURS + 1}"
    return f'<path class="{filled}" d="M{x:.1f} {y:.1f}{_OUTLINES[place % len(_OUTLINES)]}"/>'


_EVENTS = ("m-5-8h10l-5 8Z", "m-4-8h8v8h-8Z", "m0-9l4.5 4.5l-4.5 4.5l-4.5-4.5Z")


def event(kind: int, x: float, top: float, bottom: float, text: str) -> str:
    """Return a line down the drawing at what happened there, with the shape of its kind at the top."""
    return (
        f'<path class="limit" d="M{x:.1f} {top:g}V{bottom:g}"/>'
        f'<path class="event" d="M{x:.1f} {top:g}{_EVENTS[kind % len(_EVENTS)]}"><title>{escape(visible(text))}</title></path>'
    )


def legend(
    series: Sequence[ChartSeries], events: Sequence[str] = (), hollow: str = ""
) -> list[tuple[str, Markup]]:
    """Return name and mark of each series, of each kind of event, and of hollow points."""
    keys = [(each.name, mark(place, 7, 7)) for place, each in enumerate(series)]
    keys += [
        (kind, f'<path class="event" d="M7 11{_EVENTS[place % len(_EVENTS)]}"/>')
        for place, kind in enumerate(events)
    ]
    if hollow:
        keys.append((hollow, mark(0, 7, 7, hollow=True)))
    return [(name, key(drawn)) for name, drawn in keys]


def key(drawn: str) -> Markup:
    """Return what stands before a name in a legend."""
    return Markup(f'<svg viewBox="0 0 14 14" aria-hidden="true">{drawn}</svg>')


def short(name: str, most: int = 64) -> Markup:
    """Return a name that fits the drawing; the end of a long one tells models apart."""
    shown = visible(name)
    return escape(shown if len(shown) <= most else "…" + shown[-most:])
