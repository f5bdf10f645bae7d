"""Tables of a session's figures, one per question, shared by the terminal and the report."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from osmosis_ai.rubric.estimate import JudgeFigure
    from osmosis_ai.rubric.judge_agreement import AgreementReport, Calibration, JudgeAgreement, Panel

PANEL = "panel"
_GAP = "–"


@dataclass(frozen=True, slots=True)
class ScoreFormat:
    """Formats scores to three significant digits of the scale's width."""

    low: float
    high: float

    def points(self, value: float | None) -> str:
        return _GAP if value is None else f"{self._rounded(value):.{self._digits}f}"

    def signed(self, value: float | None) -> str:
        shown = self._rounded(value or 0.0)
        return self.points(value) if not shown else f"{shown:+.{self._digits}f}"

    @property
    def _digits(self) -> int:
        return min(6, max(0, 3 - max(0, math.ceil(math.log10(self.high - self.low)))))

    def _rounded(self, value: float) -> float:
        # Avoid a negative zero for a difference too small to show.
        return round(value, self._digits) + 0.0


def coefficient(value: float | None) -> str:
    return _GAP if value is None else f"{round(value, 2) + 0.0:.2f}"


def percent(share: float | None) -> str:
    """Format a share as a percentage, with a decimal only if it is significant."""
    return _GAP if share is None else f"{share * 100:.3g}%"


@dataclass(frozen=True, slots=True)
class Measure:
    """A figure of one judge, a pair of judges or the panel."""

    judge: str
    name: str
    figure: JudgeFigure
    show: Callable[[float | None], str]

    @property
    def cells(self) -> tuple[str, ...]:
        """The table row: judge, measure, value, interval, records, scores, adjusted p-value."""
        found = self.figure
        interval = _GAP
        if found.low is not None and found.high is not None:
            low, high = self.show(found.low).removesuffix("%"), self.show(found.high)
            interval = f"{low}–{high}" if found.low >= 0 else f"{low} to {high}"
        return (
            self.judge,
            self.name,
            self.show(found.value),
            interval,
            f"{found.records:,}",
            f"{found.scores:,}",
            _GAP if found.p_adjusted is None else f"{found.p_adjusted:.3f}",
        )


@dataclass(frozen=True, slots=True)
class FigureTable:
    """The figures that answer one question about the judges."""

    anchor: str
    title: str
    note: str
    measures: tuple[Measure, ...]

    @property
    def headings(self) -> tuple[str, ...]:
        names = ("Judge", "Measure", "Value", "95% CI", "Records", "Scores", "Adjusted p")
        return names if self.anchor == "bias" else names[:-1]

    @property
    def rows(self) -> list[tuple[str, ...]]:
        """The measures that have a value."""
        columns = len(self.headings)
        return [each.cells[:columns] for each in self.measures if each.figure.value is not None]


def not_measured(tables: Iterable[FigureTable]) -> list[str]:
    """Return one line for each reason for missing values."""
    names: dict[str | None, dict[str, None]] = {}
    for each in (measure for table in tables for measure in table.measures):
        if each.figure.value is None:
            names.setdefault(each.figure.reason, {})[each.name] = None
    return [f"Not measured ({reason}): {'; '.join(without)}" for reason, without in names.items()]


def agreement_tables(report: AgreementReport) -> list[FigureTable]:
    """Return the tables of a session. Only a panel has a table of agreement between judges."""
    scale, judges, panel = ScoreFormat(report.score_min, report.score_max), report.judges, report.panel
    compared = [(judge.model, judge.calibration) for judge in judges]
    if report.consensus_calibration is not None:
        compared.append((PANEL, report.consensus_calibration))
    bars = "From 0.8 alpha is reliable, from 0.667 it allows tentative conclusions (Krippendorff 2004)."
    lenient = "Bias is the judge's score minus people's: a positive one is lenient."
    adjusted = "p-values are adjusted for all judges and biases (Holm)."
    repeated = (each for judge in judges for each in _repeatability(judge, report.counts.runs, scale))
    people = (each for judge, found in compared for each in _against_people(judge, found))
    biases = (each for judge in judges for each in _biases(judge, scale))
    tables = [
        FigureTable("scores", "Mean scores", "", tuple(_means(report, scale))),
        FigureTable("repeatability", "Repeatability", bars, tuple(repeated)),
        FigureTable("people", "Agreement with people", "", tuple(people)),
        FigureTable("calibration", "Calibration", lenient, tuple(_calibration(compared, scale))),
        FigureTable("bias", "Bias by length and order", adjusted, tuple(biases)),
    ]
    if panel is not None:
        between = tuple(_between_judges(panel, scale))
        tables.insert(2, FigureTable("panel", "Agreement between judges", "", between))
    return tables


def _means(report: AgreementReport, scale: ScoreFormat) -> Iterator[Measure]:
    for judge in report.judges:
        yield Measure(judge.model, "Mean score", judge.mean, scale.points)
    if report.panel is not None:
        yield Measure(PANEL, "Mean score", report.panel.consensus, scale.points)
        yield Measure(PANEL, "Mean of median scores", report.panel.consensus_median, scale.points)


def _repeatability(judge: JudgeAgreement, runs: int, scale: ScoreFormat) -> Iterator[Measure]:
    yield Measure(judge.model, "Krippendorff's alpha", judge.alpha, coefficient)
    yield Measure(judge.model, "Krippendorff's alpha, ordinal", judge.alpha_ordinal, coefficient)
    yield Measure(judge.model, "ICC(1,1), one call", judge.retest.single, coefficient)
    if runs > 1:
        yield Measure(judge.model, f"ICC(1,{runs}), mean of {runs} calls", judge.retest.average, coefficient)
    yield Measure(judge.model, "Standard deviation of calls", judge.spread.within, scale.points)
    yield Measure(judge.model, "Records with identical scores", judge.spread.unchanged, percent)


def _between_judges(panel: Panel, scale: ScoreFormat) -> Iterator[Measure]:
    judges = len(panel.left_out)
    yield Measure(PANEL, "Krippendorff's alpha", panel.alpha, coefficient)
    yield Measure(PANEL, "Krippendorff's alpha, ordinal", panel.alpha_ordinal, coefficient)
    yield Measure(PANEL, "ICC(2,1), one judge", panel.absolute.single, coefficient)
    yield Measure(PANEL, f"ICC(2,{judges}), mean of {judges} judges", panel.absolute.average, coefficient)
    yield Measure(PANEL, "ICC(3,1), one judge, any level", panel.consistency.single, coefficient)
    for pair in panel.left_out:
        yield Measure(pair.first, f"Spearman with {pair.second}", pair.spearman, coefficient)
        yield Measure(
            pair.first, f"Absolute difference from {pair.second}", pair.mean_absolute_difference, scale.points
        )
    # With two judges, each pair equals the comparison with the others.
    for pair in (*panel.left_out, *(panel.pairs if judges > 2 else ())):
        yield Measure(pair.first, f"Pearson with {pair.second}", pair.pearson, coefficient)
        yield Measure(pair.first, f"Difference from {pair.second}", pair.difference, scale.signed)


def _against_people(judge: str, found: Calibration) -> Iterator[Measure]:
    yield Measure(judge, "Pearson", found.pearson, coefficient)
    yield Measure(judge, "Spearman", found.spearman, coefficient)
    yield Measure(judge, "Cohen's kappa", found.kappa, coefficient)
    yield Measure(judge, "Cohen's kappa, quadratic weights", found.weighted_kappa, coefficient)
    yield Measure(judge, "Same category", found.exact, percent)


def _calibration(compared: list[tuple[str, Calibration]], scale: ScoreFormat) -> Iterator[Measure]:
    for judge, found in compared:
        yield Measure(judge, "Mean absolute error", found.mean_absolute_error, scale.points)
        yield Measure(judge, "Bias", found.bias, scale.signed)
    # Show the bins of the panel or the single judge only; the chart has those of every judge.
    for judge, found in compared[-1:]:
        for place in found.bins:
            if place.bias.value is not None:
                yield Measure(judge, f"Bias at score {place.name}", place.bias, scale.signed)


def _biases(judge: JudgeAgreement, scale: ScoreFormat) -> Iterator[Measure]:
    beyond = ", beyond people's" if judge.length.against_people else ""
    yield Measure(judge.model, "Length and score (Spearman)", judge.length.correlation, coefficient)
    yield Measure(judge.model, "Length and score, people's fixed", judge.length.controlled, coefficient)
    yield Measure(judge.model, f"Per doubling of length{beyond}", judge.length.per_doubling, scale.signed)
    yield Measure(judge.model, "Position in the file (Spearman)", judge.order_in_file, coefficient)
    yield Measure(judge.model, "Usual order of quoted texts", judge.position, scale.signed)
