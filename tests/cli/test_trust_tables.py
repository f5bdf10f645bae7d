from __future__ import annotations

from io import StringIO

import numpy as np

from osmosis_ai.cli.output.plain import block_lines
from osmosis_ai.cli.output.terminal import open_console, print_blocks
from osmosis_ai.cli.rubric.trust_tables import trust_blocks
from osmosis_ai.rubric.scores import ScoreTable
from osmosis_ai.rubric.trust import trust_report
from tests.rubric.tables import simulated, table


def plain(sheet: ScoreTable) -> list[str]:
    return list(block_lines(trust_blocks(trust_report(sheet), in_plain=True)))


def test_every_number_comes_with_its_interval_and_what_it_was_taken_over() -> None:
    base = np.tile(np.linspace(0.1, 0.9, 30)[:, None, None], (1, 1, 4))
    base[:, :, 0] += 0.04
    lines = plain(table(base))
    start = lines.index("Judge maker/judge-a:")
    assert lines[start + 1] == "\tValue\t95 % interval\tRecords\tScores"
    assert lines[start + 2] == "Mean score\t0.510\t0.419 – 0.601\t30\t120"
    alpha = next(line for line in lines if line.startswith("Krippendorff's alpha\t")).split("\t")
    assert alpha[1] == "0.99" and alpha[3:] == ["30", "120"]


def test_a_panel_has_a_table_for_each_judge_and_one_together() -> None:
    lines = plain(simulated(60, models=2))
    titles = [line for line in lines if line.endswith(":")]
    assert titles == [
        "How far to trust this:",
        "Judge maker/judge-a:",
        "Judge maker/judge-b:",
        "Panel:",
        "Bias by score of the panel:",
        "Judges disagree most on:",
        "Runs of one judge disagree most on:",
        "Farthest from people:",
    ]
    assert sum(line.startswith("People (weighted kappa)") for line in lines) == 3


def test_what_could_not_be_measured_is_said_once_with_the_reason() -> None:
    lines = plain(table([[[0.5], [0.4]], [[0.6], [0.9]], [[0.1], [0.1]]]))
    missing = "not measurable: each record was scored once: Krippendorff's alpha; ICC(1,1), one call; Spread"
    assert sum(part.startswith(missing) for line in lines for part in line.splitlines()) == 1
    assert not any(line.startswith("ICC(1,1)") for line in lines)


def test_records_far_from_people_say_which_score_is_whose() -> None:
    lines = plain(table([[[0.2]], [[0.9]], [[0.5]]], human=[0.8, 0.0, 0.5]))
    start = lines.index("Farthest from people:")
    assert lines[start + 1] == "#\tRecord\tJudged\tPeople"
    assert [line.split("\t")[2:] for line in lines[start + 2 : start + 4]] == [
        ["0.900", "0.000"],
        ["0.200", "0.800"],
    ]


def test_names_of_records_drive_no_terminal() -> None:
    scores = [[[0.0], [1.0]], [[0.5], [0.5]]]
    trust = trust_report(
        table(scores, labels=["\x1b[31mred\x07[bold]", "b"], models=["a/[red]x", "b/\x1b[2J"])
    )
    console = open_console(out := StringIO())
    print_blocks(console, trust_blocks(trust))
    assert "\x1b[31mred" not in out.getvalue() and "\x1b[2J" not in out.getvalue()
    assert "[bold]" in out.getvalue() and "[red]x" in out.getvalue()
