"""Curves drawn in text, in cells of two by four Braille dots; axes say from which value to which."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import groupby, pairwise
from typing import NamedTuple

from osmosis_ai.cli.output.results import Curve

# Marks of the curves after the first.
_MARKS = "×o+*"
_BRAILLE = 0x2800
# The bit of each dot of a cell, by column and row (Unicode 15, section 21.1).
_DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
_ACROSS, _DOWN = 2, 4
# 17 digits distinguish any two floats.
_FEWEST_DIGITS, _ALL_DIGITS = 3, 17
_LARGEST_IN_FULL = 1e6


class Span(NamedTuple):
    """A piece of a line; ``curve`` is the index of the curve it belongs to, None for axes."""

    text: str
    curve: int | None = None


def draw(curves: Sequence[Curve], *, width: int, height: int, x_label: str = "") -> list[list[Span]]:
    """Return the lines of a chart, axes included; none if no curve has a point."""
    points = [point for curve in curves for point in curve.points]
    if not points:
        return []
    left, right = _extent([x for x, _ in points])
    low, high = _extent([y for _, y in points])

    def dot(x: float, y: float) -> tuple[int, int]:
        """Return the dot of a point, from the left and from the top."""
        columns, rows = width * _ACROSS - 1, height * _DOWN - 1
        across = (x - left) / (right - left) if right > left else 0.5
        up = (y - low) / (high - low) if high > low else 0.5
        return round(across * columns), rows - round(up * rows)

    cells = [[Span(" ")] * width for _ in range(height)]
    patterns: dict[tuple[int, int], int] = defaultdict(int)
    dots = [dot(x, y) for x, y in curves[0].points]
    for column, row in [*_joined(dots), *dots]:
        patterns[row // _DOWN, column // _ACROSS] |= _DOTS[column % _ACROSS][row % _DOWN]
    for (line, position), pattern in patterns.items():
        cells[line][position] = Span(chr(_BRAILLE | pattern), 0)
    marks = ["━", *(_MARKS[index % len(_MARKS)] for index in range(len(curves) - 1))]
    for index, curve in enumerate(curves[1:], start=1):
        for x, y in curve.points:
            column, row = dot(x, y)
            cells[row // _DOWN][column // _ACROSS] = Span(marks[index], index)

    # The numbers of the y axis, by line: at both ends, or where a flat curve lies.
    if high == low:
        labels = {dot(left, low)[1] // _DOWN: _labels(low)[0]}
    else:
        bottom, top = _labels(low, high)
        labels = {0: top, height - 1: bottom}
    margin = max(map(len, labels.values()))
    axis = [f"{labels[n]:>{margin}} ┤" if n in labels else f"{'':{margin}} │" for n in range(height)]
    indent = " " * (margin + 1)
    if left == right:
        ends = f"{x_label} {_labels(left)[0]}".strip().center(width).rstrip()
    else:
        first, last = _labels(left, right)
        gap = width - len(first) - len(last)
        ends = f"{first}{x_label.center(gap) if len(x_label) < gap else ' ' * gap}{last}"
    legend = [Span(f"{indent} ")]
    for index, curve in enumerate(curves):
        legend += [Span(marks[index], index), Span(f" {curve.name}   ")]
    lines = [[Span(number), *line] for number, line in zip(axis, cells, strict=True)]
    lines += [[Span(f"{indent}└{'─' * width}")], [Span(f"{indent} {ends}")], legend]
    return [_merged(line) for line in lines]


def _extent(values: Sequence[float]) -> tuple[float, float]:
    """Return the least and the greatest value; the same one where only rounding has made them differ."""
    low, high = min(values), max(values)
    return (low, low) if math.isclose(low, high) else (low, high)


def _labels(*values: float) -> list[str]:
    """Return an axis's numbers, in as many digits as it takes to tell them apart."""
    for digits in range(_FEWEST_DIGITS, _ALL_DIGITS + 1):
        shown = [
            str(round(value))
            if value == round(value) and abs(value) < _LARGEST_IN_FULL
            else f"{value:.{digits}g}"
            for value in values
        ]
        if len(set(shown)) == len(values):
            break
    return shown


def _joined(dots: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Yield the dots between each two that follow each other."""
    for (column, row), (next_column, next_row) in pairwise(dots):
        steps = max(abs(next_column - column), abs(next_row - row))
        for step in range(1, steps):
            share = step / steps
            yield round(column + share * (next_column - column)), round(row + share * (next_row - row))


def _merged(line: Sequence[Span]) -> list[Span]:
    """Return the line with neighbours of one curve in one piece."""
    return [
        Span("".join(span.text for span in spans), curve)
        for curve, spans in groupby(line, key=lambda span: span.curve)
    ]
