"""Is B better than A? One sentence, which says "cannot be told" when that is the truth.

B is better or worse if the interval of the difference excludes zero, after Holm's adjustment for several candidates, and
if the interval still excludes it with every unscored attempt placed against the result. The rest of the sentence helps a
reader to judge it: the interval, the number of rows, and the difference that these runs could have detected.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from osmosis_ai.config.decisions import attempts_asked
from osmosis_ai.decisions.metric_changes import described

if TYPE_CHECKING:
    from osmosis_ai.decisions.metric_changes import MetricChange
    from osmosis_ai.decisions.numbers import Difference

Direction = Literal["better", "worse", "unclear"]
POWER = 0.8
_TOO_LONG = 1e15
"""Beyond it a float has no decimals, and its digits say nothing."""


@dataclass(frozen=True, slots=True)
class CompareVerdict:
    """What a comparison comes to."""

    direction: Direction
    sentence: str
    reason: str | None = None
    detectable: float | None = None

    def data(self) -> dict[str, Any]:
        """Return it as scripts see it."""
        return {
            "verdict": self.direction,
            "sentence": self.sentence,
            "reason": self.reason,
            "detectable": self.detectable,
        }


@dataclass(frozen=True, slots=True)
class Circumstances:
    """What has to be known besides the numbers."""

    a: str
    b: str
    attempts: tuple[int, int]
    confidence: float
    paired: bool = True
    candidates: int = 1
    rows: tuple[int, int] | None = None
    label: str | None = None


def decide(found: MetricChange, known: Circumstances) -> CompareVerdict:
    """Return what the metric that decides says of the candidate."""
    change = found.change
    if change is None:
        why = (
            _nothing_in_both(found.metric)
            if known.paired
            else f"the {_named(found.metric)} is not known of both"
        )
        return CompareVerdict("unclear", f"{_untold(known)}: {why}.", f"{why}.")
    direction = _measured_direction(found, change, known.confidence)
    if direction == "unclear":
        return _not_told(found, change, known)
    if found.undecided is not None:
        reason = f"{found.undecided.rstrip('.')}."
        return CompareVerdict("unclear", f"{_untold(known)}: {reason}", reason)
    if direction_of(found, known.confidence) == "unclear":
        reason = _describe_unscored(found, change, known)
        return CompareVerdict("unclear", f"{_untold(known)}: {reason}", reason)
    return CompareVerdict(direction, _told(found, change, direction, known))


def _nothing_in_both(metric: str) -> str:
    if described(metric).scale == "amount":
        return f"no row has more than zero {metric.removesuffix('_per_row')} in both"
    attempts = attempts_asked(metric) or 1
    return (
        "no row has a score in both"
        if attempts == 1
        else f"no row has {attempts} attempts with a score in both"
    )


def direction_of(found: MetricChange, confidence: float) -> Direction:
    """Return the direction of a change; "unclear" also if the unscored attempts could alter it."""
    change = found.change
    direction = "unclear" if change is None else _measured_direction(found, change, confidence)
    if found.undecided is not None:
        return "unclear"
    if direction == "unclear" or not found.unscored:
        return direction
    against = found.against
    agrees = against is not None and _measured_direction(found, against, confidence) == direction
    return direction if agrees else "unclear"


def _measured_direction(found: MetricChange, change: Difference, confidence: float) -> Direction:
    if not change.excludes_none:
        return "unclear"
    if change.p_adjusted is not None and change.p_adjusted > 1 - confidence:
        return "unclear"
    return "better" if (change.value > change.none) == found.described.higher_is_better else "worse"


def change_words(metric: str, number: float | None) -> str:
    """Return a change of a metric: ``6.2`` of a share, in points; ``0.062`` of a reward; ``1.25`` times."""
    if number is None:
        return "–"
    scale = described(metric).scale
    if scale != "share":
        return _rounded(number, 3 if scale == "value" else 2)
    return _rounded(100 * number, 1)


def signed_words(metric: str, number: float) -> str:
    """Return a change with a sign, ``+6.2``; a ratio, and what is shown as none, without."""
    words = change_words(metric, number)
    shows_more = number > 0 and any(digit in "123456789∞" for digit in words)
    return f"+{words}" if shows_more and described(metric).scale != "amount" else words


def confidence_words(confidence: float) -> str:
    """Return ``95 %``."""
    return f"{100 * confidence:g} %"


def _rows_words(change: Difference, known: Circumstances) -> str:
    """Return ``100 rows``; ``20 and 100 rows`` of runs on rows of their own."""
    if known.rows is not None:
        return "{:,} and {:,} rows".format(*known.rows)
    return f"{change.rows:,} row{'' if change.rows == 1 else 's'}"


# -- sentences -----------------------------------------------------------------------------


def _told(found: MetricChange, change: Difference, direction: Direction, known: Circumstances) -> str:
    if change.kind == "ratio":
        numbers = _interval(found, change.low, change.high)
        much = f"its {_named(found.metric)} is {change_words(found.metric, change.value)} times that of {known.a}"
        return f"{known.b} is {direction}: {much} ({_doubts(change, numbers, known)})."
    low, high = change.low, change.high
    if change.value < 0:
        low, high = (None if end is None else -end for end in (high, low))
    much = f"{change_words(found.metric, abs(change.value))}{_unit(found.metric)}"
    counted = (
        f", also with {_missing(found)} counted {'against' if change.value > 0 else 'in favor of'} {known.b}"
    )
    also = counted if found.unscored else ""
    return (
        f"{known.b} is {direction} by {much} ({_doubts(change, _interval(found, low, high), known)}){also}."
    )


def _not_told(found: MetricChange, change: Difference, known: Circumstances) -> CompareVerdict:
    signed = f"{signed_words(found.metric, change.value)}{_unit(found.metric)}"
    numbers = _interval(found, change.low, change.high)
    reason = f"{signed} ({_doubts(change, numbers, known)})"
    if found.unscored:
        reason = f"{reason} without {_missing(found)}"
    if change.excludes_none and change.p_adjusted is not None:
        said = f"{reason}; alone it would count, among {known.candidates} candidates it may be chance."
        return CompareVerdict("unclear", f"{_untold(known)}: {said}", said)
    least = _detectable(change, known.confidence)
    shown = _shown(found, change, least, known)
    said = f"{reason}; {shown}" if shown else f"{reason}."
    return CompareVerdict("unclear", f"{_untold(known)}: {said}", said, least)


def _doubts(change: Difference, numbers: str | None, known: Circumstances) -> str:
    """Return what stands in parentheses: the interval, the rows, and what is unusual."""
    interval = f"{confidence_words(known.confidence)} interval {numbers}" if numbers else change.reason
    adjusted = None
    if change.p_adjusted is not None and known.candidates > 1:
        adjusted = f"p {p_words(change.p_adjusted)} among {known.candidates} candidates"
    parts = [
        interval,
        _rows_words(change, known),
        None if known.paired else "unpaired",
        adjusted,
        known.label,
    ]
    return ", ".join(filter(None, parts))


def p_words(p: float | None) -> str:
    """Return a p-value with three decimals, and one below as such: ``0.012``, ``< 0.001``."""
    if p is None:
        return "–"
    return "< 0.001" if p < 0.0005 else f"{p:.3f}"


def _interval(found: MetricChange, low: float | None, high: float | None) -> str | None:
    if low is None or high is None:
        return None
    return f"{change_words(found.metric, low)} to {change_words(found.metric, high)}"


def _untold(known: Circumstances) -> str:
    return f"{known.b} and {known.a} cannot be told apart"


def _shown(found: MetricChange, change: Difference, least: float | None, known: Circumstances) -> str | None:
    """Say what these rows and attempts would have shown, had it been there."""
    if least is None:
        return None
    a, b = known.attempts
    design = f"{_rows_words(change, known)} x {a if a == b else f'{a} and {b}'}"
    if found.described.scale == "share" and least > 1:
        return f"{design} can hardly show any difference."
    return f"{design} would have shown {change_words(found.metric, least)}{_unit(found.metric)} or more in 8 of 10 cases."


def _detectable(change: Difference, confidence: float) -> float | None:
    """Return the difference that such an interval leaves out none of in ``POWER`` of all cases; None without one.

    ``(t[1-a/2] + t[power])`` standard errors (Cohen 1988, 12.2), where the interval is ``t[1-a/2]`` of them wide towards
    no difference, whichever method it is by.
    """
    if change.low is None or change.high is None or change.kind == "ratio" or change.rows < 2:
        return None
    from scipy.special import stdtrit

    below, above = change.value - change.low, change.high - change.value
    half = below if change.value > 0 else above if change.value < 0 else max(below, above)
    degrees = change.rows - 1
    return half * (1 + float(stdtrit(degrees, POWER)) / float(stdtrit(degrees, (1 + confidence) / 2)))


def _describe_unscored(found: MetricChange, change: Difference, known: Circumstances) -> str:
    """Explain why the unscored attempts leave a measured difference undecided."""
    value = f"{signed_words(found.metric, change.value)}{_unit(found.metric)}"
    measured = (
        f"{value} over scored attempts ({_doubts(change, _interval(found, change.low, change.high), known)})"
    )
    missing, against = _missing(found), found.against
    if against is None:
        return f"{measured}, but {missing} could change it: the range of rewards is unknown (--reward-range LOW,HIGH)."
    interval = _interval(found, against.low, against.high)
    other = signed_words(found.metric, against.value)
    shown = f"{other} ({interval})" if interval else other
    how = "against" if change.value > change.none else "in favor of"
    return f"{measured}, but {shown} with {missing} counted {how} {known.b}."


def _missing(found: MetricChange) -> str:
    return f"{found.unscored:,} unscored {'attempt' if found.unscored == 1 else 'attempts'}"


def _unit(metric: str) -> str:
    scale = described(metric).scale
    if scale == "value":
        return f" in {metric}"
    if scale == "amount":
        return f" times the {_named(metric)}"
    return " points" if metric == "pass_rate" else f" points in {_named(metric)}"


def _named(metric: str) -> str:
    return {
        "pass_rate": "pass rate",
        "unscored": "unscored attempts",
        "failed": "failed attempts",
        "cost_per_row": "cost of a row",
    }.get(metric, metric)


def _rounded(number: float, digits: int) -> str:
    """Return a number with so many decimals, one more where it would look like none."""
    if not math.isfinite(number):
        return "∞" if number > 0 else "-∞"
    if abs(number) >= _TOO_LONG:
        return f"{number:.4g}"
    text = f"{number:,.{digits}f}"
    if float(text.replace(",", "")) == 0:
        text = f"{number:.{digits + 1}f}"
        return f"{0:.{digits}f}" if float(text) == 0 else text
    return text
