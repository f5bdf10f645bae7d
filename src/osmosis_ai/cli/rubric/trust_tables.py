"""How far judges can be trusted, as people see it on a terminal: what could be measured, over what."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from osmosis_ai.cli.output import formats
from osmosis_ai.cli.output.results import Block, Cell, Column, Styled, Table, Text, Tone

if TYPE_CHECKING:
    from osmosis_ai.rubric.calibration import Calibration
    from osmosis_ai.rubric.estimate import TrustEstimate
    from osmosis_ai.rubric.messages import Wording
    from osmosis_ai.rubric.panel import Panel
    from osmosis_ai.rubric.trust import Disputed, JudgeTrust, TrustReport

SHOWN_DISPUTES = 5
_TONES: dict[str, Tone] = {"good": "good", "fair": "warn", "bad": "bad", "note": "dim"}
_INTERVAL = (Column("95 % interval"), Column("Records", right=True), Column("Scores", right=True))
_COLUMNS = ("", Column("Value", right=True), *_INTERVAL)
Measure = tuple[str, "TrustEstimate", bool]


def trust_blocks(trust: TrustReport, *, in_plain: bool = False, with_page: bool = False) -> list[Block]:
    """Return what a trust report says: its findings, then every number with its interval and denominator."""
    from osmosis_ai.rubric.messages import Wording

    words = Wording(trust.score_min, trust.score_max, trust.counts.runs)
    groups = [(f"Judge {judge.model}", [*_of_judge(judge, trust.counts.runs)]) for judge in trust.judges]
    if trust.panel is not None:
        groups.append(("Panel", [*_of_panel(trust.panel, trust.consensus_calibration)]))
    blocks: list[Block] = [_findings(trust, in_plain=in_plain)]
    blocks += [_table(title, measures, words, in_plain=in_plain) for title, measures in groups]
    # One judge's bins, or those of the panel: the terminal has no room for all.
    people = trust.consensus_calibration or (trust.judges[0].calibration if trust.judges else None)
    if people is not None and people.bins:
        blocks.append(_bins(people, words, of_panel=trust.panel is not None, in_plain=in_plain))
    disputes = [*_disputes(trust, words, in_plain=in_plain)]
    blocks += disputes
    if disputes and not with_page:
        blocks.append(Text("`--report report.html` shows both explanations side by side.", tone="dim"))
    missing = [*_missing(measure for _, group in groups for measure in group)]
    if missing:
        blocks.append(Text("\n".join(missing), tone="dim", in_plain=in_plain))
    return blocks


def _missing(measures: Iterable[Measure]) -> Iterator[str]:
    """Yield what could not be measured, a line for each reason."""
    names: dict[str | None, dict[str, None]] = {}
    for name, figure, _ in measures:
        if figure.value is None:
            names.setdefault(figure.reason, {})[name.strip()] = None
    for reason, without in names.items():
        yield f"not measurable: {reason}: {'; '.join(without)}"


def _findings(trust: TrustReport, *, in_plain: bool) -> Block:
    rows: list[Sequence[Cell]] = [
        (Styled(finding.topic, _TONES[finding.level]), finding.text) for finding in trust.findings
    ]
    return Table((Column("", keep=True), ""), rows, title="How far to trust this", in_plain=in_plain)


def _of_judge(judge: JudgeTrust, runs: int) -> Iterator[Measure]:
    """Yield (name, figure, whether it is in points of the scale) of one judge."""
    yield "Mean score", judge.mean, True
    yield "Krippendorff's alpha", judge.alpha, False
    yield "ICC(1,1), one call", judge.retest.single, False
    if runs > 1:
        yield f"ICC(1,{runs}), mean of {runs} calls", judge.retest.average, False
    yield "Spread of repeated calls", judge.spread.within, True
    yield from _against_people(judge.calibration)
    if not judge.length.against_people:
        yield "Length and score (Spearman)", judge.length.correlation, False
    yield "Length and score, people's held fixed", judge.length.controlled, False
    beyond = ", beyond people's" if judge.length.against_people else ""
    yield f"Twice the length adds{beyond}", judge.length.per_doubling, True
    if judge.order_in_file.excludes_zero:
        yield "Place in the file, against people", judge.order_in_file, False
    yield "Order of the quoted blocks", judge.position, True


def _of_panel(panel: Panel, together: Calibration | None) -> Iterator[Measure]:
    judges = len(panel.left_out)
    yield "Mean of the judges", panel.consensus, True
    yield "Median of the judges", panel.consensus_median, True
    yield "Krippendorff's alpha", panel.alpha, False
    yield "ICC(2,1), one judge for another", panel.absolute.single, False
    yield f"ICC(2,{judges}), mean of {judges} judges", panel.absolute.average, False
    yield "ICC(3,1), whatever their levels", panel.consistency.single, False
    for judge in panel.left_out:
        yield f"{judge.model} with the others (Pearson)", judge.pearson, False
        yield "  above or below them", judge.difference, True
    if together is not None:
        yield from _against_people(together)


def _against_people(found: Calibration) -> Iterator[Measure]:
    yield "People (Pearson)", found.pearson, False
    yield "People (Spearman)", found.spearman, False
    yield "People (Cohen's kappa)", found.kappa, False
    yield "People (weighted kappa)", found.weighted_kappa, False
    yield "Distance from people", found.mean_absolute_error, True
    yield "Bias against people", found.bias, True


def _table(title: str, measures: Sequence[Measure], words: Wording, *, in_plain: bool) -> Table:
    """Return the measures that have a value."""
    rows: list[Sequence[Cell]] = [
        (name, Styled(_value(figure, words, in_points), "strong"), *_interval(figure, words, in_points))
        for name, figure, in_points in measures
        if figure.value is not None
    ]
    return Table(_COLUMNS, rows, title=title, in_plain=in_plain)


def _value(figure: TrustEstimate, words: Wording, in_points: bool) -> str:
    return words.points(figure.value) if in_points else words.coefficient(figure.value)


def _interval(figure: TrustEstimate, words: Wording, in_points: bool) -> tuple[str, str, str]:
    """Return (interval, records, scores)."""
    shown = words.points if in_points else words.coefficient
    known = figure.low is not None
    return (
        f"{shown(figure.low)} – {shown(figure.high)}" if known else formats.MISSING,
        formats.count(figure.records),
        formats.count(figure.scores),
    )


def _bins(people: Calibration, words: Wording, *, of_panel: bool, in_plain: bool) -> Table:
    rows: list[Sequence[Cell]] = [
        (
            place.name,
            words.points(place.judge),
            words.points(place.people),
            words.points(place.bias.value, sign=True),
            *_interval(place.bias, words, in_points=True),
        )
        for place in people.bins
        if place.bias.value is not None
    ]
    who = "the panel" if of_panel else "the judge"
    columns = (
        Column("Score", keep=True),
        Column("Judged", right=True),
        Column("People", right=True),
        Column("Bias", right=True),
        *_INTERVAL,
    )
    return Table(columns, rows, title=f"Bias by score of {who}", in_plain=in_plain)


def _disputes(trust: TrustReport, words: Wording, *, in_plain: bool) -> Iterator[Block]:
    lists = (
        ("Judges disagree most on", ("Lowest", "Highest"), trust.disputed),
        ("Runs of one judge disagree most on", ("Lowest", "Highest"), trust.unstable),
        ("Farthest from people", ("Judged", "People"), trust.far_from_people),
    )
    for title, sides, found in lists:
        if found:
            yield _disputed(title, sides, found[:SHOWN_DISPUTES], words, in_plain=in_plain)


def _disputed(
    title: str, sides: tuple[str, str], found: Sequence[Disputed], words: Wording, *, in_plain: bool
) -> Table:
    rows: list[Sequence[Cell]] = [
        (record.record, record.label, *map(words.points, record.scores)) for record in found
    ]
    shown = [Column(side, right=True) for side in sides]
    columns: list[Column | str] = [Column("#", right=True), "Record", *shown]
    return Table(columns, rows, title=title, in_plain=in_plain)
