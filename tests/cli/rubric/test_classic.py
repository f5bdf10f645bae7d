"""`osmosis eval rubric`: what it prints and keeps, what it does with answers that are no score, and with a budget."""

from __future__ import annotations

import json
import math
import re
import shlex
from pathlib import Path

import pytest

from tests.cli.conftest import Cli
from tests.cli.rubric_judging import GOOD, configure, result_of, score, texts, write
from tests.rubric.judge_server import JudgeServer

# -- the documented output -----------------------------------------------------------------


def test_json_prints_the_documented_operation_with_the_records(cli: Cli, judge: JudgeServer) -> None:
    texts("one [score 0.2]", "two [score 0.8]")
    outcome = score(cli, "--json")
    assert (outcome.status, outcome.err) == (0, "")
    document = json.loads(outcome.out)
    assert (document["status"], document["operation"], document["message"]) == (
        "success",
        "eval.rubric",
        "Rubric evaluation completed.",
    )
    resource = document["resource"]
    assert (resource["model"], resource["data_path"], resource["number"]) == ("openai/judge", "data.jsonl", 1)
    assert (resource["record_count"], resource["error_count"], resource["unscored_count"]) == (2, 0, 0)
    assert resource["statistics"] == pytest.approx(
        {"average": 0.5, "variance": 0.09, "stdev": 0.3, "min": 0.2, "max": 0.8}
    )
    first = resource["records"][0]
    assert {key: first[key] for key in ("index", "label", "scores", "explanations", "errors")} == {
        "index": 1,
        "label": "r1",
        "scores": [0.2],
        "explanations": ["It follows the rubric."],
        "errors": [],
    }
    assert first["statistics"] == {"average": 0.2, "variance": 0.0, "stdev": 0.0, "min": 0.2, "max": 0.2}


def test_a_result_file_takes_the_place_of_the_records(cli: Cli, judge: JudgeServer) -> None:
    texts("one")
    resource = json.loads(score(cli, "--json", "-o", "deep/er/out.json").out)["resource"]
    assert "records" not in resource and resource["output_path"].endswith("deep/er/out.json")
    document = result_of("deep/er/out.json")
    keys = list(document)
    assert keys[:6] == ["generated_at", "model", "rubric", "data_path", "number", "overall_statistics"]
    assert keys.index("overall_statistics") < keys.index("records")
    assert (document["rubric"], document["records"][0]["scores"]) == ("Be good and clear.", [0.5])


def test_plain_prints_the_scores_of_every_record_in_a_line(cli: Cli, judge: JudgeServer) -> None:
    texts(*["[score 0.5]"] * 45, "[score 0.25]")
    outcome = score(cli, "--plain", "-o", "out.json", "-n", "2")
    lines = outcome.out.splitlines()
    assert (outcome.status, lines[:2]) == (0, ["Rubric evaluation completed.", "Record\tAverage\tScores"])
    assert lines[2:48] == [
        *(f"r{n}\t0.5000\t0.5000\t0.5000" for n in range(1, 46)),
        "r46\t0.2500\t0.2500\t0.2500",
    ]
    assert lines[48] == "Overall Statistics:" and lines[49].startswith("average\t0.49")
    assert "Wrote results to out.json" in lines


def test_plain_prints_what_there_is_of_a_session_with_errors(cli: Cli, judge: JudgeServer) -> None:
    texts("[score 0.5]", "[garbage]")
    outcome = score(cli, "--plain")
    assert outcome.status == 1
    assert outcome.out.splitlines()[2:4] == ["r1\t0.5000\t0.5000", "r2\t–"]


def test_people_see_every_run_the_statistics_and_where_the_results_are(cli: Cli, judge: JudgeServer) -> None:
    texts("[noise 0.2] one", "[red]not markup[/red]")
    outcome = score(cli, "-n", "2", "-o", "out.json")
    assert outcome.status == 0
    for line in ("Model: openai/judge", "Evaluated 2 records from data.jsonl", "Runs per record: 2", "[r1]"):
        assert line in outcome.out
    assert "  Run 02: score=0." in outcome.out
    assert re.search(r"^  Summary: avg=0\.\d{4} stdev=0\.\d{4} min=0\.\d{4} max=0\.\d{4}$", outcome.out, re.M)
    assert "4 of 4 calls, in 2 of 2 records" in outcome.out
    assert "Overall Statistics" in outcome.out and "Wrote results to out.json" in outcome.out


def test_the_more_calls_a_record_has_the_fewer_records_fill_the_screen(cli: Cli, judge: JudgeServer) -> None:
    texts(*(f"text {number}" for number in range(30)))
    assert "[r20]" in (once := score(cli).out) and "… 10 more records in " in once
    assert "[r4]" in (often := score(cli, "-n", "10").out) and "… 26 more records in " in often


def test_a_directory_gets_the_documented_name(cli: Cli, judge: JudgeServer) -> None:
    texts("one")
    Path("there").mkdir()
    assert score(cli, "-o", "there").status == 0
    assert score(cli, "-o", "new/").status == 0
    assert Path("there/rubric_eval_result.json").is_file() and Path("new/rubric_eval_result.json").is_file()


def test_without_a_place_results_go_to_the_cache_under_the_rubric(cli: Cli, judge: JudgeServer) -> None:
    texts("one")
    Path("My Rubric.md").write_text("Be kind.")
    path = json.loads(
        cli("eval", "rubric", "-d", "data.jsonl", "-r", "@My Rubric.md", "--model", "openai/j", "--json").out
    )
    written = Path(path["resource"]["output_path"])
    assert written.parent == Path("cache/eval_result/my_rubric").absolute()
    assert written.name.startswith("rubric_eval_result_") and result_of(str(written))["rubric"] == "Be kind."


# -- scores outside the scale ---------------------------------------------------------------


def test_scores_outside_the_scale_are_clamped_and_counted_next_to_the_mean(
    cli: Cli, judge: JudgeServer
) -> None:
    texts("[score 4]", "[score -2]", "[score 1]", "[once status 400] [score 9]")
    assert score(cli, "-o", "out.json").status == 1
    outcome = score(cli, "-o", "out.json", "--resume", "--report", "report.html")
    assert outcome.status == 0
    assert "0.7500 (3 of 4 scores outside the scale, clamped)" in outcome.out
    document = result_of()
    assert (document["overall_statistics"]["average"], document["counts"]["outside_scale"]) == (0.75, 3)
    stated = [record["judgements"][0].get("stated_score") for record in document["records"]]
    assert stated == [4.0, -2.0, None, 9.0]
    assert cli("view", "out.json", "--report", "page.html").status == 0
    for page in ("report.html", "page.html"):
        assert "3 of 4 scores outside the scale, clamped" in Path(page).read_text()


def test_every_output_format_counts_scores_outside_the_scale(cli: Cli, judge: JudgeServer) -> None:
    texts("[score 4]")
    resource = json.loads(score(cli, "--json").out)["resource"]
    assert (resource["statistics"]["average"], resource["counts"]["outside_scale"]) == (1.0, 1)
    assert "average\t1.0000 (1 of 1 score outside the scale, clamped)" in score(cli, "--plain").out
    configure()
    write({"rubric_id": "clarity", "solution_str": "[score 11]"}, {"rubric_id": "clarity", **GOOD})
    classic = cli("eval-rubric", "-r", "clarity", "-d", "data.jsonl", "-o", "out.json", "--plain")
    assert "(1 of 2 scores outside the scale, clamped)" in classic.out
    assert result_of()["counts"]["outside_scale"] == 1


def test_a_session_with_every_score_on_the_scale_says_nothing_of_it(cli: Cli, judge: JudgeServer) -> None:
    texts("[score 1]", "[score 0]")
    outcome = score(cli, "-o", "out.json")
    assert "outside the scale" not in outcome.out and result_of()["counts"]["outside_scale"] == 0


# -- what has no score ---------------------------------------------------------------------


def test_what_cannot_be_scored_is_counted_apart_with_its_reason_and_is_never_a_zero(
    cli: Cli, judge: JudgeServer
) -> None:
    texts(
        "fine [score 0.9]", "[garbage]", "[list]", "[nan]", "[refuse]", "[words]", "[empty]", "[status 400]"
    )
    outcome = score(cli, "--json", "-o", "out.json")
    assert (outcome.status, outcome.out) == (1, "")
    error = json.loads(outcome.err)["error"]
    assert error["code"] == "PLATFORM_ERROR"
    assert error["message"].startswith("Rubric evaluation completed with errors.")
    details = error["details"]
    assert (details["error_count"], details["unscored_count"]) == (1, 6)
    assert details["counts"]["unscored_by_reason"] == {
        "unparsable": 1,
        "no_score": 2,
        "not_finite": 1,
        "refused": 1,
        "empty": 1,
    }
    assert details["statistics"]["average"] == details["statistics"]["min"] == 0.9
    document = result_of()
    statuses = [record["judgements"][0]["status"] for record in document["records"]]
    assert statuses == ["scored", *["unscored"] * 6, "failed"]
    assert all(record["scores"] == [] for record in document["records"][1:])
    assert "list" in document["records"][2]["unscored"][0]["detail"]
    assert "HTTP 400" in document["records"][7]["errors"][0]
    assert document["trust"]["counts"]["scored_records"] == 1


def test_a_reply_with_prose_or_fixed_when_asked_again_is_a_score(cli: Cli, judge: JudgeServer) -> None:
    texts("[prose]", "[once garbage] [score 0.3]", "[once status 429] [score 0.4]")
    assert score(cli, "-o", "out.json").status == 0
    assert [record["scores"] for record in result_of()["records"]] == [[0.25], [0.3], [0.4]]


def test_people_see_the_report_and_then_the_error(cli: Cli, judge: JudgeServer) -> None:
    texts("fine", "[garbage]")
    outcome = score(cli, "-o", "out.json")
    assert outcome.status == 1
    assert "UNSCORED: " in outcome.out and "score=0.5000" in outcome.out
    assert "1 unscored (1 unparsable)" in outcome.err and "--resume" in outcome.err


def test_a_provider_that_fails_midway_leaves_a_complete_result(cli: Cli, judge: JudgeServer) -> None:
    texts(*(f"{number} [score 0.{number}]" for number in range(1, 6)), "[status 401]", "[status 404]")
    outcome = score(cli, "-o", "out.json", "--concurrency", "1")
    assert outcome.status == 1
    document = result_of()
    assert len(document["records"]) == 7 and document["complete"] is False
    assert [record["scores"] for record in document["records"][:5]] == [[0.1], [0.2], [0.3], [0.4], [0.5]]


def test_a_judge_that_answers_nobody_is_not_asked_forever(cli: Cli, judge: JudgeServer) -> None:
    judge.broken = 401
    texts(*(f"text {number}" for number in range(400)))
    outcome = score(cli, "--json", "-o", "out.json")
    assert outcome.status == 1 and judge.calls < 100
    counts = result_of()["counts"]
    assert counts["failed"] >= 10 and counts["pending"] == 400 - counts["failed"]
    assert "10 calls in a row failed" in json.loads(outcome.err)["error"]["message"]


def test_a_resumed_session_asks_only_for_what_has_no_score(cli: Cli, judge: JudgeServer) -> None:
    texts("fine [score 0.9]", "[once status 400] [score 0.1]", "[score 0.5]")
    assert score(cli, "-o", "out.json").status == 1
    assert Path("out.json.partial.jsonl").is_file()
    calls = judge.calls
    assert score(cli, "-o", "out.json", "--resume").status == 0
    assert judge.calls == calls + 1
    assert [record["scores"] for record in result_of()["records"]] == [[0.9], [0.1], [0.5]]
    assert not Path("out.json.partial.jsonl").exists()
    outcome = score(cli, "-o", "out.json", "--resume")
    assert outcome.status == 1 and "there is no unfinished session to resume" in outcome.err


def test_the_command_that_is_shown_goes_on_with_a_session_of_any_options(
    cli: Cli, judge: JudgeServer
) -> None:
    configure(score_max=1)
    write(
        {"id": "it's", "rubric_id": "clarity", "solution_str": "[once status 400]", "ground_truth": "g"},
        {"rubric_id": "clarity", "solution_str": "fine", "ground_truth": "g"},
    )
    options = ["-c", "rubric_configs.yaml", "-n", "2", "--swap", "--seed", "7", "--timeout", "20"]
    options += ["--model", "openai/judge-a", "--model", "openai/judge-b", "--api-base", judge.base_url]
    options += ["--score-min", "-1", "--score-max", "2", "-o", "a place/", "--report", "a page.html"]
    stopped = cli("eval", "rubric", "-d", "data.jsonl", "-r", "clarity", *options)
    assert stopped.status == 1
    command = re.search(r"osmosis (eval rubric .* --resume)$", stopped.err, re.M)
    assert command is not None, stopped.err
    calls = judge.calls
    resumed = cli(*shlex.split(command[1]))
    assert resumed.status == 0, resumed.err
    assert judge.calls == calls + 1


def test_resuming_in_the_cache_finds_the_session_and_its_file(cli: Cli, judge: JudgeServer) -> None:
    texts("[once status 400]")
    first = json.loads(score(cli, "--json").err)["error"]["details"]["output_path"]
    second = json.loads(score(cli, "--json", "--resume").out)["resource"]["output_path"]
    assert first == second


def test_resuming_refuses_other_inputs_and_names_them(cli: Cli, judge: JudgeServer) -> None:
    texts("[status 400]")
    score(cli, "-o", "out.json")
    texts("[status 400] changed")
    outcome = score(cli, "-o", "out.json", "--resume", "-n", "3", "--score-max", "5", model="openai/other")
    assert outcome.status == 1
    for change in (
        "data: the file's content is another",
        "models: was openai/judge, now openai/other",
        "calls per record (`-n`): was 1, now 3",
        "score bounds: was 0, 1, now 0, 5",
    ):
        assert f"  - {change}" in outcome.err
    assert "rubric" not in outcome.err.split("started.")[1].split("hint")[0]


def test_starting_over_keeps_the_unfinished_session_aside(cli: Cli, judge: JudgeServer) -> None:
    texts("[status 400]")
    score(cli, "-o", "out.json")
    outcome = score(cli, "-o", "out.json")
    assert "is kept as" in outcome.err and Path("out.json.previous.partial.jsonl").is_file()


def test_no_score_is_not_a_number_in_any_document(cli: Cli, judge: JudgeServer) -> None:
    texts("[garbage]")
    outcome = score(cli, "--json", "-o", "out.json")
    for text in (outcome.err, Path("out.json").read_text()):
        json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} in a document"))
    assert math.isfinite(result_of()["overall_statistics"]["average"])


# -- budgets -------------------------------------------------------------------------------


def test_a_spent_budget_leaves_the_rest_pending_and_a_higher_one_goes_on(
    cli: Cli, judge: JudgeServer
) -> None:
    texts(*(f"text {number}" for number in range(200)))
    outcome = score(cli, "--json", "--max-tokens", "5000", "-o", "out.json")
    assert outcome.status == 1
    document = json.loads(outcome.out)
    assert document["status"] == "partial" and document["resource"]["stopped"]["kind"] == "budget"
    counts, used = document["resource"]["counts"], document["resource"]["usage"]
    assert counts["pending"] > 0 and counts["scored"] == 200 - counts["pending"]
    assert document["resource"]["trust"]["counts"]["pending_calls"] == counts["pending"]
    per_call = (used["input_tokens"] + used["output_tokens"]) / counts["scored"]
    assert 5000 - per_call <= used["input_tokens"] + used["output_tokens"] <= 5000 + 9 * per_call
    assert document["next_steps_structured"][0]["command"].endswith("--resume")
    calls = judge.calls
    assert score(cli, "--max-tokens", "1000000", "-o", "out.json", "--resume").status == 0
    assert judge.calls == calls + counts["pending"]


def test_a_limit_on_cost_needs_a_price(cli: Cli, judge: JudgeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_BASE_URL")
    texts("one")
    outcome = score(cli, "--max-cost", "1", model="openai/nobody-knows-this")
    assert outcome.status == 1 and "needs the price of `openai/nobody-knows-this`" in outcome.err
