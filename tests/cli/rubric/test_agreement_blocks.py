from __future__ import annotations

from io import StringIO

import numpy as np

from osmosis_ai.cli.output.plain import block_lines
from osmosis_ai.cli.output.terminal import open_console, print_blocks
from osmosis_ai.cli.rubric.tables import agreement_blocks
from osmosis_ai.rubric.judge_agreement import measure_agreement
from osmosis_ai.rubric.scores import ScoreTable
from tests.rubric.tables import simulated, table


def plain(sheet: ScoreTable) -> list[str]:
    return list(block_lines([*agreement_blocks(measure_agreement(sheet), in_plain=True)]))


def test_every_number_comes_with_its_interval_and_what_it_was_taken_over() -> None:
    base = np.tile(np.linspace(0.1, 0.9, 30)[:, None, None], (1, 1, 4))
    base[:, :, 0] += 0.04
    lines = plain(table(base))
    start = lines.index("Mean scores:")
    assert lines[start + 1] == "Judge\tMeasure\tValue\t95% CI\tRecords\tScores"
    assert lines[start + 2] == "maker/judge-a\tMean score\t0.510\t0.419–0.601\t30\t120"
    alpha = next(line for line in lines if "\tKrippendorff's alpha\t" in line).split("\t")
    assert alpha[2] == "0.99" and alpha[4:] == ["30", "120"]
    assert "0.510" in lines[start + 2] and "\t51.0\t" in "".join(plain(table(base * 100, score_max=100.0)))


def test_each_question_has_one_table_over_all_judges() -> None:
    lines = plain(simulated(60, models=2))
    assert [line for line in lines if line.endswith(":")] == [
        "Mean scores:",
        "Repeatability:",
        "Agreement between judges:",
        "Agreement with people:",
        "Calibration:",
        "Bias by length and order:",
        "Largest disagreements:",
    ]
    kappas = [line.split("\t")[0] for line in lines if "\tCohen's kappa, quadratic weights\t" in line]
    assert kappas == ["maker/judge-a", "maker/judge-b", "panel"]
    (biased,) = {line.count("\t") for line in lines if "\tPosition in the file" in line}
    assert biased == 6  # the adjusted p-value


def test_what_could_not_be_measured_is_reported_once_with_the_reason() -> None:
    lines = plain(table([[[0.5], [0.4]], [[0.6], [0.9]], [[0.1], [0.1]]]))
    missing = "Not measured (each record was scored once; repeat calls with `-n 5`): Krippendorff's alpha; "
    assert sum(part.startswith(missing) for line in lines for part in line.splitlines()) == 1
    assert not any("\tICC(1,1)" in line for line in lines)


def test_disagreements_name_whose_scores_differ() -> None:
    lines = plain(table([[[0.2]], [[0.9]], [[0.5]]], human=[0.8, 0.0, 0.5]))
    start = lines.index("Largest disagreements:")
    assert lines[start + 1] == "Between\t#\tRecord\tScore\tScore"
    assert [line.split("\t") for line in lines[start + 2 : start + 4]] == [
        ["judge and people", "2", "record[2]", "0.900", "0.000"],
        ["judge and people", "1", "record[1]", "0.200", "0.800"],
    ]


def test_names_of_records_drive_no_terminal() -> None:
    scores = [[[0.0], [1.0]], [[0.5], [0.5]]]
    report = measure_agreement(
        table(scores, labels=["\x1b[31mred\x07[bold]", "b"], models=["a/[red]x", "b/\x1b[2J"])
    )
    console = open_console(out := StringIO())
    print_blocks(console, [*agreement_blocks(report)])
    assert "\x1b[31mred" not in out.getvalue() and "\x1b[2J" not in out.getvalue()
    assert "[bold]" in out.getvalue() and "[red]x" in out.getvalue()
