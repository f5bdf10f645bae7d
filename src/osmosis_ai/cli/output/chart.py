"""Curves drawn in text, in cells of two by four Braille dots; axes say from which value to which; or on one line."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise

from osmosis_ai.cli.output.results import Curve

MARKS = "×o+*"
"""What each curve but the first is drawn with."""
_BRAILLE = 0x2800
# The bit of each dot of a cell, by column and row (Unicode 15, section 21.1).
_DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
_ACROSS, _DOWN = 2, 4
# 17 digits tell any two floats apart.
_FEWEST_DIGITS, _ALL_DIGITS = 3, 17
_LARGEST_IN_FULL = 1e6
_LEVELS = "▁▂▃▄▅▆▇█"


@dataclass(frozen=True, slots=True)
class Span:
    """A piece of a line; ``curve`` is the index of the curve it belongs to, None for axes."""

    text: str
    curve: int | None = None


@dataclass(frozen=True, slots=True)
class _Frame:
    """Where values lie among the dots: ``width`` by ``height`` cells."""

    width: int
    height: int
    left: float
    right: float
    low: float
    high: float

    @property
    def y_labels(self) -> dict[int, str]:
        """The numbers beside the lines of cells, by line: at both ends, or where a flat curve lies."""
        if self.high == self.low:
            _, row = self.dot(self.left, self.low)
            return {row // _DOWN: _labels(self.low)[0]}
        bottom, top = _labels(self.low, self.high)
        return {0: top, self.height - 1: bottom}

    @property
    def margin(self) -> int:
        """How many characters the numbers of the y axis take."""
        return max(map(len, self.y_labels.values()))

    def dot(self, x: float, y: float) -> tuple[int, int]:
        """Return the dot of a point, from the left and from the top."""
        columns, rows = self.width * _ACROSS - 1, self.height * _DOWN - 1
        across = (x - self.left) / (self.right - self.left) if self.right > self.left else 0.5
        up = (y - self.low) / (self.high - self.low) if self.high > self.low else 0.5
        return round(across * columns), rows - round(up * rows)


def draw(curves: Sequence[Curve], *, width: int, height: int, x_label: str = "") -> list[list[Span]]:
    """Return the lines of a chart, axes included; nothing when no curve has a point."""
    xs = [x for curve in curves for x, _ in curve.points]
    ys = [y for curve in curves for _, y in curve.points]
    if not xs:
        return []
    frame = _Frame(width, height, *_extent(xs), *_extent(ys))
    cells: list[list[Span]] = [[Span(" ")] * width for _ in range(height)]
    _draw_line(cells, frame, curves[0].points)
    for index, curve in enumerate(curves[1:], start=1):
        mark = MARKS[(index - 1) % len(MARKS)]
        for x, y in curve.points:
            column, row = frame.dot(x, y)
            cells[row // _DOWN][column // _ACROSS] = Span(mark, index)
    lines = [*_with_y_axis(cells, frame), *_x_axis(frame, x_label), _legend(curves, frame)]
    return [_merged(line) for line in lines]


def _extent(values: Sequence[float]) -> tuple[float, float]:
    """Return the least and the greatest value; the same one where only rounding has made them differ."""
    low, high = min(values), max(values)
    return (low, low) if math.isclose(low, high) else (low, high)


def _labels(*values: float) -> list[str]:
    """Return an axis's numbers, in as many digits as it takes to tell them apart."""
    for digits in range(_FEWEST_DIGITS, _ALL_DIGITS + 1):
        said = [_number(value, digits) for value in values]
        if len(set(said)) == len(values):
            break
    return said


def _number(value: float, digits: int) -> str:
    if value == round(value) and abs(value) < _LARGEST_IN_FULL:
        return str(round(value))
    return f"{value:.{digits}g}"


def _draw_line(cells: list[list[Span]], frame: _Frame, points: Sequence[tuple[float, float]]) -> None:
    patterns: dict[tuple[int, int], int] = {}
    dots = [frame.dot(x, y) for x, y in points]
    for column, row in [*_joined(dots), *dots]:
        cell = (row // _DOWN, column // _ACROSS)
        patterns[cell] = patterns.get(cell, 0) | _DOTS[column % _ACROSS][row % _DOWN]
    for (line, position), pattern in patterns.items():
        cells[line][position] = Span(chr(_BRAILLE | pattern), 0)


def _joined(dots: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Yield the dots between each two that follow each other."""
    for (column, row), (next_column, next_row) in pairwise(dots):
        steps = max(abs(next_column - column), abs(next_row - row))
        for step in range(1, steps):
            share = step / steps
            yield round(column + share * (next_column - column)), round(row + share * (next_row - row))


def _with_y_axis(cells: list[list[Span]], frame: _Frame) -> Iterator[list[Span]]:
    labels, margin = frame.y_labels, frame.margin
    for number, line in enumerate(cells):
        said = labels.get(number, "")
        yield [Span(f"{said:>{margin}} ┤" if said else f"{'':{margin}} │"), *line]


def _x_axis(frame: _Frame, x_label: str) -> Iterator[list[Span]]:
    indent = " " * (frame.margin + 1)
    yield [Span(f"{indent}└{'─' * frame.width}")]
    if frame.left == frame.right:
        only = f"{x_label} {_labels(frame.left)[0]}".strip()
        yield [Span(f"{indent} {only.center(frame.width).rstrip()}")]
        return
    first, last = _labels(frame.left, frame.right)
    gap = frame.width - len(first) - len(last)
    yield [Span(f"{indent} {first}{x_label.center(gap) if len(x_label) < gap else ' ' * gap}{last}")]


def _legend(curves: Sequence[Curve], frame: _Frame) -> list[Span]:
    spans = [Span(" " * (frame.margin + 2))]
    for index, curve in enumerate(curves):
        mark = "━" if index == 0 else MARKS[(index - 1) % len(MARKS)]
        spans += [Span(mark, index), Span(f" {curve.name}   ")]
    return spans


def _merged(line: Sequence[Span]) -> list[Span]:
    """Return the line with neighbours of one curve in one piece."""
    return [
        Span("".join(span.text for span in spans), curve)
        for curve, spans in groupby(line, key=lambda span: span.curve)
    ]


def sparkline(values: Sequence[float], *, width: int) -> str:
    """Return ``values`` as at most ``width`` bars, each the mean of its share of them, from least to greatest."""
    if not values:
        return ""
    count = min(width, len(values))
    edges = [position * len(values) // count for position in range(count + 1)]
    means = [sum(values[start:end]) / (end - start) for start, end in pairwise(edges)]
    low, high = min(means), max(means)
    if high == low:
        return _LEVELS[0] * count
    top = len(_LEVELS) - 1
    return "".join(_LEVELS[round((mean - low) / (high - low) * top)] for mean in means)
