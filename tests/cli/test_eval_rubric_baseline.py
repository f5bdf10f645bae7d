"""`osmosis eval rubric --baseline`: what became of the scores, record by record where both files tell what was judged."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Cli, Outcome
from tests.cli.rubric_judging import configure, result_of, score, write
from tests.rubric.judge_server import JudgeServer

BEFORE = (0.2, 0.5, 0.3, 0.6, 0.4, 0.1)
AFTER = (0.5, 0.7, 0.55, 0.9, 0.65, 0.45)


def answers(scores: Sequence[float], *, name: str = "", order: int = 1) -> None:
    """Write answers to the same questions, each of which gets the score given."""
    lines = [
        {"original_input": f"question {place}", "solution_str": f"answer {name} [score {given}]"}
        for place, given in enumerate(scores)
    ]
    write(*lines[::order])


def compared(cli: Cli, *arguments: str, model: str = "openai/judge") -> tuple[Outcome, dict[str, Any]]:
    outcome = score(cli, "-o", "after.json", "--baseline", "before.json", *arguments, model=model)
    found: dict[str, Any] = result_of("after.json")["baseline_comparison"]
    return outcome, found


@pytest.fixture
def before(cli: Cli, judge: JudgeServer) -> None:
    answers(BEFORE, name="old")
    assert score(cli, "-o", "before.json").status == 0


@pytest.mark.usefixtures("before")
def test_other_answers_to_the_same_questions_are_compared_question_by_question(cli: Cli) -> None:
    answers(AFTER, name="new", order=-1)
    outcome, found = compared(cli)
    assert found["verdict"].startswith("The mean score is higher: +0.2750 (95% CI 0.")
    assert found["verdict"].endswith(", 6 records).") and found["verdict"] in outcome.out
    assert (found["paired_by"], found["records"]) == ("question", {"common": 6, "baseline": 6, "current": 6})
    difference = found["difference"]
    assert difference["value"] == pytest.approx(0.275) and 0.15 < difference["low"] < difference["high"] < 0.4
    shown = json.loads(score(cli, "--baseline", "before.json", "--json").out)["resource"]
    assert shown["baseline_comparison"] == found


@pytest.mark.usefixtures("before")
def test_worse_answers_and_equal_ones_are_told_so(cli: Cli) -> None:
    answers([given - 0.1 + 0.01 * place for place, given in enumerate(BEFORE)], name="worse")
    assert compared(cli)[1]["verdict"].startswith("The mean score is lower: -0.0750 (95% CI -0.")
    answers((0.3, 0.4, 0.4, 0.5, 0.5, 0.05), name="other")
    assert compared(cli)[1]["verdict"].startswith("No significant difference: +0.0083 (95% CI -0.")


@pytest.mark.usefixtures("before")
def test_the_same_texts_by_another_judge_are_compared_and_every_number_says_so(cli: Cli) -> None:
    answers(BEFORE, name="old")
    outcome, found = compared(cli, "-n", "2", model="openai/stern")
    assert found["paired_by"] == "record" and set(found["changed_inputs"]) == {"models", "runs"}
    assert found["verdict"].startswith("No significant difference (another judge): +0.0000 (")
    assert "models: was openai/judge, now openai/stern" in outcome.out
    assert "this session uses another judge than the baseline." in outcome.err


@pytest.mark.usefixtures("before")
def test_another_order_of_texts_is_named_and_the_judge_is_the_same(cli: Cli) -> None:
    answers(BEFORE, name="old")
    outcome, found = compared(cli, "-n", "2", "--swap")
    assert found["verdict"].startswith(
        "No significant difference (another order of texts (--swap)): +0.0000 ("
    )
    assert "this session uses another order of texts (--swap) than the baseline." in outcome.err


def test_equal_scores_have_an_exact_mean_and_differ_by_zero(cli: Cli, judge: JudgeServer) -> None:
    answers([0.7] * 3)
    assert score(cli, "-o", "before.json").status == 0
    statistics = result_of("before.json")["overall_statistics"]
    assert (statistics["average"], statistics["variance"], statistics["stdev"]) == (0.7, 0.0, 0.0)
    document = result_of("before.json")
    document["overall_statistics"]["average"] = 0.7000000001
    Path("before.json").write_text(json.dumps(document))
    assert "average baseline=0.7000 current=0.7000 delta=+0.0000" in compared(cli)[0].out


@pytest.mark.usefixtures("before")
def test_scores_on_another_scale_are_not_compared(cli: Cli) -> None:
    answers(AFTER)
    outcome, found = compared(cli, "--score-max", "5")
    assert found["verdict"] == "The scores are not compared: they are on another scale."
    assert found["difference"]["value"] is None and "score bounds: was 0, 1, now 0, 5" in outcome.out
    assert "on another scale: they will not be compared." in outcome.err


@pytest.mark.usefixtures("before")
@pytest.mark.parametrize("identified", [True, False])
def test_without_a_record_in_both_only_the_statistics_are_compared(cli: Cli, identified: bool) -> None:
    document = result_of("before.json")
    reason = "no record is in both sessions"
    if not identified:
        del document["inputs"]
        for record in document["records"]:
            del record["digest"], record["question_digest"]
        Path("before.json").write_text(json.dumps(document))
        reason = "the baseline's file does not identify its records"
    write(*({"original_input": f"another {given}", "solution_str": f"[score {given}]"} for given in AFTER))
    outcome, found = compared(cli)
    assert (found["paired_by"], found["difference"]["value"], found["records"]["common"]) == (None, None, 0)
    assert f"The scores are not compared: {reason}." in outcome.out
    assert found["delta_statistics"]["average"] == pytest.approx(0.275)


@pytest.mark.usefixtures("before")
def test_copies_of_a_record_are_one_and_few_common_ones_are_told(cli: Cli) -> None:
    lines = [{"original_input": "question 0", "solution_str": "again [score 0.9]"}] * 3
    others = [{"original_input": f"further {place}", "solution_str": "[score 0.5]"} for place in range(4)]
    write(*lines, {"original_input": "question 1", "solution_str": "[score 0.4]"}, *others)
    outcome, found = compared(cli)
    assert found["records"] == {"common": 2, "baseline": 6, "current": 8}
    assert found["difference"]["value"] == pytest.approx((0.7 - 0.1) / 2)
    assert found["warnings"] == ["only 2 of 6 records are in both: they may not represent the others"]
    assert found["warnings"][0] in outcome.out


@pytest.mark.parametrize(
    "records",
    [
        None,
        "none",
        [1, None, {"judgements": 3}, {"judgements": [{"score": "high"}]}],
        [{"judgements": [{"score": 7, "model": []}], "digest": {}}],  # beyond the scale
    ],
)
def test_a_file_without_records_that_can_be_read_has_only_its_statistics(
    cli: Cli, judge: JudgeServer, records: Any
) -> None:
    told = {"overall_statistics": {"average": 0.4}, "records": records, "inputs": {"models": [[[]]]}}
    Path("before.json").write_text(json.dumps({**told, "score_min": 0, "score_max": 1}))
    answers(AFTER)
    outcome, found = compared(cli)
    assert outcome.status == 0 and "no records with scores" in found["verdict"]
    assert found["delta_statistics"] == {"average": pytest.approx(0.225)}


def test_the_classic_command_pairs_records_and_brings_their_scales_together(
    cli: Cli, judge: JudgeServer
) -> None:
    configure()
    for name, scores in (("before", BEFORE), ("after", AFTER)):
        own = {"rubric_id": "clarity", "score_max": 1}
        write(
            *(
                {**own, "original_input": f"q {n}", "solution_str": f"[score {x}]"}
                for n, x in enumerate(scores)
            )
        )
        arguments = ["-o", f"{name}.json"] + ["-b", "before.json"] * (name == "after")
        outcome = cli("eval-rubric", "--rubric", "clarity", "--data", "data.jsonl", *arguments)
        assert outcome.status == 0
    found = result_of("after.json")["baseline_comparison"]
    assert (found["paired_by"], found["difference"]["value"]) == ("question", pytest.approx(2.75))
    assert found["verdict"] in outcome.out


def test_a_conversation_is_its_turns_before_the_answer(cli: Cli, judge: JudgeServer) -> None:
    for name, scores in (("before", BEFORE), ("after", AFTER)):
        turns = [(("user", f"q {n}"), ("assistant", f"[score {x}]")) for n, x in enumerate(scores)]
        write(*({"messages": [{"role": role, "content": said} for role, said in each]} for each in turns))
        score(cli, "-o", f"{name}.json", *(["--baseline", "before.json"] if name == "after" else []))
    assert result_of("after.json")["baseline_comparison"]["records"]["common"] == 6
