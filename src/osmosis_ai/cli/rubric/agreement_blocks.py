"""The agreement of judges on a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from osmosis_ai.cli.output.results import Block, Column, Table, Text

if TYPE_CHECKING:
    from osmosis_ai.rubric.judge_agreement import AgreementReport

SHOWN_DISPUTES = 5


def agreement_blocks(
    report: AgreementReport, *, in_plain: bool = False, with_page: bool = False
) -> Iterator[Block]:
    """Yield every figure with its interval and denominators, and the records on which scores differ most."""
    from osmosis_ai.rubric.agreement_tables import ScoreFormat, agreement_tables, not_measured

    tables = agreement_tables(report)
    for table in tables:
        if table.rows:
            columns = [Column(heading, right=place > 1) for place, heading in enumerate(table.headings)]
            yield Table(columns, table.rows, title=table.title, note=table.note, in_plain=in_plain)
    scale = ScoreFormat(report.score_min, report.score_max)
    lists = (
        ("judges (lowest, highest)", report.disputed),
        ("calls of one judge (lowest, highest)", report.unstable),
        ("judge and people", report.far_from_people),
    )
    disputes = [
        (between, f"{record.record:,}", record.label, *map(scale.points, record.scores))
        for between, found in lists
        for record in found[:SHOWN_DISPUTES]
    ]
    if disputes:
        headings = ("Between", "#", "Record", "Score", "Score")
        columns = [Column(each, right=each in ("#", "Score")) for each in headings]
        yield Table(columns, disputes, title="Largest disagreements", in_plain=in_plain)
        if not with_page:
            yield Text("`--report report.html` shows their texts and explanations.", tone="dim")
    if missing := not_measured(tables):
        yield Text("\n".join(missing), tone="dim", in_plain=in_plain)
