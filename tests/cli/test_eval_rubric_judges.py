"""`osmosis eval rubric`: whose rubric, judges, keys and bounds count, and what several judges say together."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Cli
from tests.cli.rubric_judging import KEY, configure, result_of, score, texts, write
from tests.rubric.judge_server import JudgeServer
from tests.standin_model import Reply, error_reply


def test_the_id_of_a_rubric_brings_its_judge_and_bounds(cli: Cli, judge: JudgeServer) -> None:
    configure(system_prompt="Be strict.")
    write(
        {"solution_str": "mine [score 7]", "rubric_id": "Clarity"},
        {"solution_str": "another's", "rubric_id": "other"},
        {"solution_str": "nobody's"},
    )
    outcome = cli("eval", "rubric", "-d", "data.jsonl", "-r", "clarity", "-o", "out.json")
    assert outcome.status == 0
    document = result_of()
    assert (document["model"], document["score_max"], document["rubric"]) == (
        "from-yaml",
        10.0,
        "Judge the clarity.",
    )
    assert [record["scores"] for record in document["records"]] == [[7.0], [0.5]]
    system, user = judge.requests[0].body["messages"]
    assert system["content"].startswith("Be strict.\n\n") and "Judge the clarity." in user["content"]
    assert judge.requests[0].body["model"] == "from-yaml"


def test_an_option_wins_over_the_rubrics_own_judge_and_bounds(cli: Cli, judge: JudgeServer) -> None:
    configure()
    texts("[score 30]")
    arguments = ["-d", "data.jsonl", "-r", "clarity", "--model", "openai/chosen", "--score-max", "20"]
    assert cli("eval", "rubric", *arguments, "-o", "out.json").status == 0
    judgement = result_of()["records"][0]["judgements"][0]
    assert (judgement["model"], judgement["score"], judgement["stated_score"]) == (
        "openai/chosen",
        20.0,
        30.0,
    )


def test_one_word_that_no_file_defines_is_taken_as_text_with_a_warning(cli: Cli, judge: JudgeServer) -> None:
    texts("one")
    outcome = cli(
        "eval", "rubric", "-d", "data.jsonl", "-r", "clarity", "--model", "openai/j", "-o", "out.json"
    )
    assert outcome.status == 0 and "`clarity` is taken as the text of the rubric" in outcome.err
    configure(id="other")
    outcome = cli(
        "eval", "rubric", "-d", "data.jsonl", "-r", "clarity", "--model", "openai/j", "-o", "out.json"
    )
    assert outcome.status == 1 and "Available ids: other" in outcome.err


def test_bounds_of_a_record_win_and_scores_are_compared_on_one_scale(cli: Cli, judge: JudgeServer) -> None:
    write(
        {"solution_str": "a [score 4]", "score_min": 1, "score_max": 5, "human_score": 4},
        {"solution_str": "b [score 0.75]", "human_score": 0.75},
    )
    assert score(cli, "-o", "out.json").status == 0
    document = result_of()
    assert [record["scores"] for record in document["records"]] == [[4.0], [0.75]]
    assert document["trust"]["judges"][0]["calibration"]["mean_absolute_error"]["value"] == pytest.approx(0.0)


def test_several_judges_make_a_panel(cli: Cli, judge: JudgeServer) -> None:
    texts(*(f"{number} [score 0.{number}] [bias 0.2 judge-b]" for number in range(1, 7)))
    outcome = score(cli, "--model", "openai/judge-b", "-n", "2", "-o", "out.json", model="openai/judge-a")
    assert outcome.status == 0 and judge.calls == 24
    document = result_of()
    assert document["models"] == ["openai/judge-a", "openai/judge-b"]
    by_model = [
        (found["model"], found["run"], found["score"]) for found in document["records"][0]["judgements"]
    ]
    assert by_model == [
        ("openai/judge-a", 1, 0.1),
        ("openai/judge-a", 2, 0.1),
        ("openai/judge-b", 1, 0.3),
        ("openai/judge-b", 2, 0.3),
    ]
    assert document["records"][0]["consensus"] == pytest.approx(0.2)
    assert "  Consensus: 0.2000" in outcome.out
    assert document["trust"]["panel"] is not None
    assert [entry["calls"] for entry in document["usage"]["judges"]] == [12, 12]


def test_a_judge_that_favours_what_it_reads_first_is_found_out(cli: Cli, judge: JudgeServer) -> None:
    write(
        *(
            {"solution_str": f"{number} [score 0.{number}] [noise 0.01] [first 0.2]", "ground_truth": "ten"}
            for number in range(1, 8)
        )
    )
    outcome = score(cli, "-n", "4", "--swap", "-o", "out.json")
    assert outcome.status == 0, outcome.err
    position = result_of()["trust"]["judges"][0]["position"]
    assert position["value"] == pytest.approx(0.2, abs=0.02) and position["low"] > 0.15
    assert position["records"] == 7
    assert score(cli, "-n", "4", "-o", "plain.json").status == 0
    unmeasured = result_of("plain.json")["trust"]["judges"][0]["position"]
    assert unmeasured["value"] is None and "--swap" in unmeasured["reason"]


@pytest.mark.parametrize(("drift", "found"), [(0.009, False), (0.02, True)])
def test_a_bias_of_one_of_three_judges_is_a_finding_only_among_all_of_them(
    cli: Cli, judge: JudgeServer, drift: float, found: bool
) -> None:
    rng = random.Random(5)
    write(
        *(
            {
                "solution_str": f"{place:02} [score 0.30]"
                + "".join(f" [bias {rng.uniform(0, 0.2):.2f} judge-{name}]" for name in "ab")
                + f" [bias {rng.uniform(0, 0.2) + drift * place:.2f} judge-c]",
                "human_score": 0.3,
            }
            for place in range(20)
        )
    )
    models = ("--model", "openai/judge-b", "--model", "openai/judge-c")
    assert score(cli, *models, "-o", "out.json", model="openai/judge-a").status == 0
    trust = result_of()["trust"]
    orders = [judge["order_in_file"] for judge in trust["judges"]]
    # Alone the third judge's drift is significant in both cases: its interval excludes zero.
    assert [order["low"] > 0 for order in orders] == [False, False, True]
    assert orders[2]["p"] < 0.05
    assert orders[2]["p_adjusted"] == pytest.approx(3 * orders[2]["p"])
    assert (orders[2]["p_adjusted"] <= 0.05) is found


def test_every_judge_has_one_vote_in_the_consensus(cli: Cli, judge: JudgeServer) -> None:
    # The second judge scores one of its two runs only.
    texts("[score 0.2] [bias 0.6 judge-b]")
    answer, seen = judge.respond, []

    def respond(body: dict[str, Any]) -> Any:
        if body["model"] == "judge-b" and body.get("seed"):
            seen.append(body)
            return error_reply(400, "no")
        return answer(body)

    judge.respond = respond
    assert (
        score(cli, "--model", "openai/judge-b", "-n", "2", "-o", "out.json", model="openai/judge-a").status
        == 1
    )
    (record,) = result_of()["records"]
    assert seen and sorted(record["scores"]) == [0.2, 0.2, 0.8]
    assert record["consensus"] == pytest.approx(0.5)


def test_an_endpoint_of_ones_own_needs_no_variable(
    cli: Cli, judge: JudgeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_BASE_URL")
    monkeypatch.delenv("OPENAI_API_KEY")
    texts("one")
    assert score(cli, "--api-base", judge.base_url, model="my-judge").status == 0
    assert judge.requests[0].body["model"] == "my-judge"


def test_a_key_on_the_command_line_works_with_a_warning_and_is_never_repeated(
    cli: Cli, judge: JudgeServer
) -> None:
    texts("[status 400]")
    outcome = score(cli, "--json", "--api-key", "sk-given-on-the-line-123", "-o", "out.json")
    warning, error = map(json.loads, outcome.err.splitlines())
    assert warning["warning"]["code"] == "DEPRECATION"
    assert judge.key_seen == "sk-given-on-the-line-123"
    assert "sk-given" not in outcome.err + outcome.out + json.dumps(error)


def test_a_report_is_written_beside_the_results(cli: Cli, judge: JudgeServer) -> None:
    texts("one [noise 0.2]", "two [score 0.8]", "[garbage]")
    outcome = score(cli, "-n", "2", "-o", str(Path("out.json").absolute()), "--report", "deep/report.html")
    assert outcome.status == 1
    page = Path("deep/report.html").read_text()
    assert "Be good and clear." in page and KEY not in page
    assert "data.jsonl" in page and str(Path.cwd()) not in page
    assert "one [noise 0.2]" in page and "It follows the rubric." in page and "Largest disagreements" in page
    assert "What goes into the report: scores" in outcome.err
    again = ["-n", "2", "-o", "out.json", "--report", "deep/report.html", "--no-text"]
    kept = score(cli, *again)
    assert "deep/report.html exists" in kept.err and "--force" in kept.err
    assert Path("deep/report.html").read_text() == page
    score(cli, *again, "--force")
    bare = Path("deep/report.html").read_text()
    assert not re.search("Be good and clear|noise 0.2|garbage", bare) and "Largest disagreements" in bare


def test_a_report_of_many_records_contains_those_on_which_scores_differ_most(
    cli: Cli, judge: JudgeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("osmosis_ai.viewer.one_file.MOST_RECORDS", 1)
    texts("calm [score 0.5]", "disputed [score 0.5] [bias 0.3 judge-b]", "calm [score 0.6]")
    report = ["--model", "openai/judge-b", "-o", "out.json", "--report", "report.html"]
    assert score(cli, *report, model="openai/judge-a").status == 0
    page = Path("report.html").read_text()
    assert "2 on which scores differ least are only in out.json" in page and "over 3 records" in page
    assert 'id="record-2"' in page and "disputed [score" in page and "calm [score" not in page


def test_a_baseline_is_compared(cli: Cli, judge: JudgeServer) -> None:
    texts("[score 0.5]")
    score(cli, "-o", "before.json")
    texts("[score 0.65]")
    outcome = score(cli, "-o", "after.json", "--baseline", "before.json")
    assert "average baseline=0.5000 current=0.6500 delta=+0.1500" in outcome.out
    compared = result_of("after.json")["baseline_comparison"]
    assert compared["source_path"] == "before.json"
    assert compared["delta_statistics"]["average"] == pytest.approx(0.15)


def test_a_key_is_in_no_file_and_no_line(cli: Cli, judge: JudgeServer, tmp_path: Path) -> None:
    texts("[echo key]", "fine", "[garbage]")
    report = ["--report", "report.html", "--force"]
    shown = [score(cli, *mode, "-o", "out.json", *report) for mode in ([], ["--json"], ["--plain"])]
    configure(model_info={"provider": "openai", "model": "m", "api_key": KEY})
    shown.append(cli("preview", "-p", "data.jsonl"))
    write({"rubric_id": "clarity", "solution_str": "[echo key]"})
    shown.append(cli("eval-rubric", "-r", "clarity", "-d", "data.jsonl"))
    Path("rubric_configs.yaml").unlink()
    assert all(KEY not in outcome.out + outcome.err for outcome in shown)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) > 4 and not [path for path in files if KEY.encode() in path.read_bytes()]


def test_a_gate_on_scores_is_not_passed_by_calls_without_one(cli: Cli, judge: JudgeServer) -> None:
    good = [f"answer {place} [score {0.85 + 0.01 * (place % 10)}]" for place in range(40)]
    texts(*good, *(f"bad {place} [garbage]" for place in range(5)))
    assert score(cli, "-o", "gaps.json").status == 1
    texts(*good, *(f"bad {place} [score 0]" for place in range(5)))
    assert score(cli, "-o", "zeros.json").status == 0
    gaps, zeros = (
        json.loads(cli("eval", "gate", name, "--min", "score=0.85", "--json").out)["resource"]["rules"][0]
        for name in ("gaps.json", "zeros.json")
    )
    assert (gaps["verdict"], gaps["unscored"], zeros["verdict"]) == ("unclear", 5, "unclear")
    assert gaps["at_least"] > 0.85
    assert gaps["unscored_at_worst"]["value"] == pytest.approx(zeros["value"])
    # The worst case has the interval of the calls that scored 0.
    for limit, status in ((zeros["at_least"] + 0.001, 3), (zeros["at_least"] - 0.001, 0)):
        for name in ("gaps.json", "zeros.json"):
            assert cli("eval", "gate", name, "--min", f"score={limit}").status == status


def test_tokens_that_a_judge_does_not_report_are_unknown(cli: Cli, judge: JudgeServer) -> None:
    usages = iter([True, False, False, False])
    judge.respond = lambda _: Reply('{"score": 0.5, "explanation": "fine"}', usage=next(usages))
    texts("one", "two")
    outcome = score(cli, "-o", "out.json", "--plain")
    (line,) = [line for line in outcome.out.splitlines() if line.startswith("tokens")]
    assert line.endswith("(1 of 2 calls)")
    assert result_of()["usage"]["judges"][0]["calls_without_tokens"] == 1
    again = score(cli, "-o", "again.json", "--plain")
    assert [line.split("\t")[1] for line in again.out.splitlines() if line.startswith("tokens")] == [
        "unknown"
    ]
