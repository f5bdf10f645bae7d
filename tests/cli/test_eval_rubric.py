"""`osmosis eval rubric` and the older `osmosis eval-rubric`: output, result files, baselines, invalid input."""

from __future__ import annotations

import itertools
import json
import os
import random
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Cli, Outcome
from tests.cli.rubric_judging import GOOD, KEY, configure, refused, result_of, score, texts, write
from tests.cli.test_root import modules_after
from tests.rubric.judge_server import JudgeServer
from tests.standin_model import Reply


def test_result_file(cli: Cli, judge: JudgeServer) -> None:
    texts("one")
    resource = json.loads(score(cli, "--json", "-o", "deep/er/out.json").out)["resource"]
    assert "records" not in resource and resource["output_path"].endswith("deep/er/out.json")
    document = result_of("deep/er/out.json")
    keys = list(document)
    assert keys[:6] == ["generated_at", "model", "rubric", "data_path", "number", "overall_statistics"]
    assert keys.index("overall_statistics") < keys.index("records")
    assert (document["rubric"], document["records"][0]["scores"]) == ("Be good and clear.", [0.5])
    assert score(cli, "-o", "deep").status == score(cli, "-o", "new/").status == 0
    assert Path("deep/rubric_eval_result.json").is_file() and Path("new/rubric_eval_result.json").is_file()


def test_default_result_file(cli: Cli, judge: JudgeServer) -> None:
    texts("one")
    Path("My Rubric.md").write_text("Be kind.")
    path = json.loads(
        cli("eval", "rubric", "-d", "data.jsonl", "-r", "@My Rubric.md", "--model", "openai/j", "--json").out
    )
    written = Path(path["resource"]["output_path"])
    assert written.parent == Path("cache/eval_result/my_rubric").absolute()
    assert written.name.startswith("rubric_eval_result_") and result_of(str(written))["rubric"] == "Be kind."


def test_scores_outside_the_scale(cli: Cli, judge: JudgeServer) -> None:
    texts("[score 4]", "[score -2]", "[score 1]", "[once status 400] [score 9]")
    assert score(cli, "-o", "out.json").status == 1
    outcome = score(cli, "-o", "out.json", "--resume", "--report", "report.html")
    assert outcome.status == 0
    assert "Mean score 0.7500 on a scale of 0 to 1 (3 of 4 scores outside the scale, clamped)." in outcome.out
    document = result_of()
    assert (document["overall_statistics"]["average"], document["counts"]["outside_scale"]) == (0.75, 3)
    stated = [record["judgements"][0].get("stated_score") for record in document["records"]]
    assert stated == [4.0, -2.0, None, 9.0]
    assert "3 of 4 scores outside the scale, clamped" in Path("report.html").read_text()


def test_unscored_records(cli: Cli, judge: JudgeServer) -> None:
    texts(
        "fine [score 0.9]", "[garbage]", "[list]", "[nan]", "[refuse]", "[words]", "[empty]", "[status 400]"
    )
    outcome = score(cli, "--json", "-o", "out.json")
    assert (outcome.status, outcome.out) == (1, "")
    error = json.loads(outcome.err)["error"]
    details = error["details"]
    json.loads(Path("out.json").read_text(), parse_constant=lambda name: pytest.fail(f"{name} in a document"))
    assert (details["error_count"], details["unscored_count"]) == (1, 6)
    by_reason = {"unparsable": 1, "no_score": 2, "not_finite": 1, "refused": 1, "empty": 1}
    assert details["counts"]["unscored_by_reason"] == by_reason
    assert details["statistics"]["average"] == details["statistics"]["min"] == 0.9
    document = result_of()
    assert document["complete"] is False
    statuses = [record["judgements"][0]["status"] for record in document["records"]]
    assert statuses == ["scored", *["unscored"] * 6, "failed"]
    assert all(record["scores"] == [] for record in document["records"][1:])
    assert "list" in document["records"][2]["unscored"][0]["detail"]
    assert "HTTP 400" in document["records"][7]["errors"][0]
    assert document["trust"]["counts"]["scored_records"] == 1


def test_terminal_sequences_in_record_names(cli: Cli, judge: JudgeServer) -> None:
    write(
        {"id": "\x1b[31mred\x07[bold]", "solution_str": "[score 0]", "human_score": 1},
        {"id": "b", "solution_str": "[score 0.5]", "human_score": 0.5},
    )
    outcome = score(cli, "-o", "out.json", "--verbose")
    assert (outcome.status, "\x1b[31mred" in outcome.out) == (0, False)
    assert outcome.out.count("[bold]") == 2, "among the records and the largest disagreements"


def test_judge_that_always_fails(cli: Cli, judge: JudgeServer) -> None:
    judge.broken = 401
    texts(*(f"text {number}" for number in range(400)))
    outcome = score(cli, "--json", "-o", "out.json")
    assert outcome.status == 1 and judge.calls < 100
    counts = result_of()["counts"]
    assert counts["failed"] >= 10 and counts["pending"] == 400 - counts["failed"]
    assert "10 calls in a row failed" in json.loads(outcome.err)["error"]["message"]


def test_resume_command_with_all_options(cli: Cli, judge: JudgeServer) -> None:
    configure(score_max=1)
    write(
        {"id": "it's", "rubric_id": "clarity", "solution_str": "[once status 400]", "ground_truth": "g"},
        {"rubric_id": "clarity", "solution_str": "fine", "ground_truth": "g"},
    )
    options = ["-c", "rubric_configs.yaml", "-n", "2", "--swap", "--seed", "7", "--timeout", "20"]
    options += ["--model", "openai/judge-a", "--model", "openai/judge-b", "--api-base", judge.base_url]
    options += ["--score-min", "-1", "--score-max", "2", "-o", "a place/", "--report", "a page.html"]
    stopped = cli("eval", "rubric", "-d", "data.jsonl", "-r", "clarity", *options)
    journal = Path("a place/rubric_eval_result.json.partial.jsonl")
    assert (stopped.status, journal.is_file()) == (1, True)
    command = re.search(r"osmosis (eval rubric .* --resume)$", stopped.out, re.M)
    assert command is not None, stopped.out
    assert "--resume" not in stopped.err and "completed with errors" not in stopped.err
    calls = judge.calls
    resumed = cli(*shlex.split(command[1]))
    assert resumed.status == 0, resumed.err
    assert (judge.calls, journal.exists()) == (calls + 1, False)
    again = cli(*shlex.split(command[1]))
    assert again.status == 1 and "No unfinished session was found" in again.err


def test_resume_with_other_inputs(cli: Cli, judge: JudgeServer) -> None:
    texts("[status 400]")
    score(cli, "-o", "out.json")
    texts("[status 400] changed")
    outcome = score(cli, "-o", "out.json", "--resume", "-n", "3", "--score-max", "5", model="openai/other")
    assert outcome.status == 1
    for change in (
        "data: the file's content changed",
        "models: was openai/judge, now openai/other",
        "calls per record (`-n`): was 1, now 3",
        "score bounds: was 0, 1, now 0, 5",
    ):
        assert f"  - {change}" in outcome.err
    assert "rubric" not in outcome.err.split("changed:")[1].split("hint")[0]


def test_unfinished_sessions_are_archived(cli: Cli, judge: JudgeServer) -> None:
    texts("[status 400]")
    score(cli, "-o", "out.json")
    for name in ("out.json.previous.partial.jsonl", "out.json.previous-2.partial.jsonl"):
        outcome = score(cli, "-o", "out.json")
        assert f"was archived as {Path(name).absolute()}" in outcome.err and Path(name).is_file()


def test_complete_result_is_archived(cli: Cli, judge: JudgeServer) -> None:
    texts(*(f"text {number}" for number in range(40)))
    assert score(cli, "-o", "out.json").status == 0
    outcome = score(cli, "-o", "out.json", "--max-tokens", "500")
    assert (outcome.status, result_of()["complete"]) == (1, False)
    assert "the earlier result was archived as" in outcome.err
    assert result_of("out.json.previous.json")["counts"]["scored"] == 40


def test_journal_of_another_session(cli: Cli, judge: JudgeServer) -> None:
    texts("[status 400]", "fine")
    score(cli, "-o", "other.json", "--seed", "1")
    score(cli, "-o", "out.json")
    journal = Path("out.json.partial.jsonl")
    lines = Path("other.json.partial.jsonl").read_text().splitlines(keepends=True)
    journal.write_text(journal.read_text() + "".join(lines[1:]))
    outcome = score(cli, "-o", "out.json", "--resume")
    assert outcome.status == 1 and "is not of this session" in outcome.err


def test_irregular_result_files(cli: Cli, judge: JudgeServer) -> None:
    texts("one")
    os.mkfifo("pipe.json")
    assert "'pipe.json' is not a regular file" in refused(cli, judge, "-o", "pipe.json")
    Path("loop.json").symlink_to("loop.json")
    assert "'loop.json' is not a regular file" in refused(cli, judge, "-o", "loop.json")
    Path("link.json").symlink_to("target.json")
    assert score(cli, "-o", "link.json").status == 0
    assert Path("link.json").is_symlink() and result_of("target.json")["complete"]


def test_token_budget_and_resume(cli: Cli, judge: JudgeServer) -> None:
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


def test_resume_command_with_limits(cli: Cli, judge: JudgeServer) -> None:
    texts(*(f"text {number}" for number in range(50)))
    address = f"{judge.base_url}?api-key={KEY}"
    limits = ("--max-tokens", "1000", "--max-time", "1h", "--concurrency", "2")
    outcome = score(cli, *limits, "--api-base", address, "-o", "out.json")
    (resume,) = [line for line in outcome.out.splitlines() if line.startswith("Resume: ")]
    words = shlex.split(resume.removeprefix("Resume: "))
    known = dict(itertools.pairwise(words))
    assert (known["--max-tokens"], known["--max-time"], known["--concurrency"]) == ("HIGHER", "HIGHER", "2")
    assert known["--api-base"] == judge.base_url and words[-1] == "--resume"
    assert "api-key" not in outcome.out and KEY not in outcome.out


def test_cost_limit_needs_a_price(cli: Cli, judge: JudgeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_BASE_URL")
    texts("one")
    outcome = score(cli, "--max-cost", "1", model="openai/nobody-knows-this")
    assert outcome.status == 1 and "the price of 'openai/nobody-knows-this' is unknown" in outcome.err


def test_long_explanation(cli: Cli, judge: JudgeServer) -> None:
    long = "reason " * 100_000
    judge.respond = lambda _: Reply(json.dumps({"score": 0.5, "explanation": long}))
    texts("one")
    shown = score(cli, "-o", "out.json", "--verbose").out
    assert "Run 1: 0.5000 reason reason" in shown and len(shown) < 5000
    assert result_of()["records"][0]["judgements"][0]["explanation"].startswith(long.strip())


def test_rubric_id(cli: Cli, judge: JudgeServer) -> None:
    configure(system_prompt="Be strict.")
    write(
        {"solution_str": "mine [score 7]", "rubric_id": "Clarity"},
        {"solution_str": "another's", "rubric_id": "other"},
        {"solution_str": "nobody's"},
    )
    outcome = cli("eval", "rubric", "-d", "data.jsonl", "-r", "clarity", "-o", "out.json")
    assert outcome.status == 0
    document = result_of()
    shown = (document["model"], document["score_max"], document["rubric"])
    assert shown == ("from-yaml", 10.0, "Judge the clarity.")
    assert [record["scores"] for record in document["records"]] == [[7.0], [0.5]]
    system, user = judge.requests[0].body["messages"]
    assert system["content"].startswith("Be strict.\n\n") and "Judge the clarity." in user["content"]
    assert judge.requests[0].body["model"] == "from-yaml"


def test_options_override_the_rubric(cli: Cli, judge: JudgeServer) -> None:
    configure()
    texts("[score 30]")
    arguments = ["-d", "data.jsonl", "-r", "clarity", "--model", "openai/chosen", "--score-max", "20"]
    assert cli("eval", "rubric", *arguments, "-o", "out.json").status == 0
    judgement = result_of()["records"][0]["judgements"][0]
    found = (judgement["model"], judgement["score"], judgement["stated_score"])
    assert found == ("openai/chosen", 20.0, 30.0)


@pytest.mark.parametrize(
    ("changes", "problem", "hint"),
    [
        ({"scor_max": 5}, "Unknown key 'scor_max'", "did you mean 'score_max'?"),
        (
            {"model_info": {"provider": "openai", "model": "m", "temperature": 1}},
            "Unknown key 'model_info.temperature'",
            "known keys: provider, model, api_key",
        ),
    ],
)
def test_unknown_rubric_key(
    cli: Cli, judge: JudgeServer, changes: dict[str, Any], problem: str, hint: str
) -> None:
    configure(title="Clarity", **changes)
    texts("one")
    outcome = cli("eval", "rubric", "-d", "data.jsonl", "-r", "clarity")
    assert (outcome.status, outcome.out, judge.calls) == (1, "", 0)
    assert problem in outcome.err and "rubric_configs.yaml' at rubrics[0]." in outcome.err
    assert hint in outcome.err


def test_unknown_rubric_id(cli: Cli, judge: JudgeServer) -> None:
    texts("one")
    outcome = cli(
        "eval", "rubric", "-d", "data.jsonl", "-r", "clarity", "--model", "openai/j", "-o", "out.json"
    )
    assert outcome.status == 0 and "'clarity' is used as the text of the rubric" in outcome.err
    configure(id="other")
    assert "Available ids: other" in cli("eval", "rubric", "-d", "data.jsonl", "-r", "clarity").err


def test_bounds_of_a_record(cli: Cli, judge: JudgeServer) -> None:
    write(
        {"solution_str": "a [score 4]", "score_min": 1, "score_max": 5, "human_score": 4},
        {"solution_str": "b [score 0.75]", "human_score": 0.75},
    )
    assert score(cli, "-o", "out.json").status == 0
    document = result_of()
    assert [record["scores"] for record in document["records"]] == [[4.0], [0.75]]
    assert document["overall_statistics"]["average"] == pytest.approx(0.75)
    assert document["trust"]["judges"][0]["figures"]["mean_absolute_error"]["value"] == pytest.approx(0.0)


def test_panel(cli: Cli, judge: JudgeServer) -> None:
    texts(*(f"{number} [score 0.{number}] [bias 0.2 judge-b]" for number in range(1, 7)))
    outcome = score(cli, "--model", "openai/judge-b", "-n", "2", "-o", "out.json", model="openai/judge-a")
    assert outcome.status == 0 and judge.calls == 24
    document = result_of()
    assert document["models"] == ["openai/judge-a", "openai/judge-b"]
    judgements = document["records"][0]["judgements"]
    by_model = [(found["model"][-1], found["run"], found["score"]) for found in judgements]
    assert by_model == [("a", 1, 0.1), ("a", 2, 0.1), ("b", 1, 0.3), ("b", 2, 0.3)]
    assert document["records"][0]["consensus"] == pytest.approx(0.2)
    assert "Agreement of judges (alpha)" in outcome.out
    assert document["trust"]["panel"] is not None
    assert [entry["calls"] for entry in document["usage"]["judges"]] == [12, 12]


def test_position_bias(cli: Cli, judge: JudgeServer) -> None:
    write(
        *(
            {"solution_str": f"{number} [score 0.{number}] [noise 0.01] [first 0.2]", "ground_truth": "ten"}
            for number in range(1, 8)
        )
    )
    outcome = score(cli, "-n", "4", "--swap", "-o", "out.json")
    assert outcome.status == 0, outcome.err
    position = result_of()["trust"]["judges"][0]["figures"]["position"]
    assert position["value"] == pytest.approx(0.2, abs=0.02) and position["low"] > 0.15
    assert position["records"] == 7
    assert score(cli, "-n", "4", "-o", "plain.json").status == 0
    unmeasured = result_of("plain.json")["trust"]["judges"][0]["figures"]["position"]
    assert unmeasured["value"] is None and "--swap" in unmeasured["reason"]


@pytest.mark.parametrize(("drift", "found"), [(0.009, False), (0.02, True)])
def test_bias_is_adjusted_for_several_judges(cli: Cli, judge: JudgeServer, drift: float, found: bool) -> None:
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
    orders = [judge["figures"]["order_in_file"] for judge in trust["judges"]]
    # Alone the third judge's drift is significant in both cases: its interval excludes zero.
    assert [order["low"] > 0 for order in orders] == [False, False, True]
    assert orders[2]["p"] < 0.05
    assert orders[2]["p_adjusted"] == pytest.approx(3 * orders[2]["p"])
    assert (orders[2]["p_adjusted"] <= 0.05) is found


def test_api_base_option(cli: Cli, judge: JudgeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_BASE_URL")
    monkeypatch.delenv("OPENAI_API_KEY")
    texts("one")
    assert score(cli, "--api-base", judge.base_url, model="my-judge").status == 0
    assert judge.requests[0].body["model"] == "my-judge"


def test_api_key_option(cli: Cli, judge: JudgeServer) -> None:
    texts("[status 400]")
    outcome = score(cli, "--json", "--api-key", "sk-given-on-the-line-123", "-o", "out.json")
    warning, error = map(json.loads, outcome.err.splitlines())
    assert warning["warning"]["code"] == "DEPRECATION"
    assert judge.key_seen == "sk-given-on-the-line-123"
    assert "sk-given" not in outcome.err + outcome.out + json.dumps(error)


def test_report(cli: Cli, judge: JudgeServer) -> None:
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
    assert "deep/report.html' already exists" in kept.err and "--force" in kept.err
    assert Path("deep/report.html").read_text() == page
    score(cli, *again, "--force")
    bare = Path("deep/report.html").read_text()
    assert not re.search("Be good and clear|noise 0.2|garbage", bare) and "Largest disagreements" in bare


def test_report_of_many_records(cli: Cli, judge: JudgeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("osmosis_ai.viewer.reports.MOST_RECORDS", 1)
    texts("calm [score 0.5]", "disputed [score 0.5] [bias 0.3 judge-b]", "calm [score 0.6]")
    report = ["--model", "openai/judge-b", "-o", "out.json", "--report", "report.html"]
    assert score(cli, *report, model="openai/judge-a").status == 0
    page = Path("report.html").read_text()
    assert "2 with the smallest differences are only in out.json" in page and "over 3 records" in page
    assert 'id="record-2"' in page and "disputed [score" in page and "calm [score" not in page


def test_key_is_never_written(cli: Cli, judge: JudgeServer, tmp_path: Path) -> None:
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


def test_gate_counts_unscored_calls(cli: Cli, judge: JudgeServer) -> None:
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


def test_unreported_tokens(cli: Cli, judge: JudgeServer) -> None:
    usages = iter([True, False, False, False])
    judge.respond = lambda _: Reply('{"score": 0.5, "explanation": "fine"}', usage=next(usages))
    texts("one", "two")
    outcome = score(cli, "-o", "out.json", "--plain")
    (line,) = [line for line in outcome.out.splitlines() if line.startswith("Tokens")]
    assert line.endswith("(1 of 2 calls)")
    assert result_of()["usage"]["judges"][0]["calls_without_tokens"] == 1
    again = score(cli, "-o", "again.json", "--plain")
    assert "\nTokens\tunknown" in again.out


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        ([GOOD, '{"solution_str": '], "Invalid JSON on line 2 of 'data.jsonl': "),
        ([GOOD, '"text"'], "Expected JSON object on line 2 of 'data.jsonl', found a string."),
        (
            [GOOD, {"id": "x"}],
            "Line 2 of 'data.jsonl' must include 'messages' (list) or 'solution_str' (string).",
        ),
        ([GOOD, '{"solution_str": NaN}'], "Invalid JSON on line 2 of 'data.jsonl'"),
        ([{"messages": [{"role": "user", "content": "q"}]}], "Line 1 of 'data.jsonl' "),
        (
            [{**GOOD, "score_max": True}],
            "Line 1 of 'data.jsonl': 'score_max' must be a number, not a boolean",
        ),
        ([{**GOOD, "human_score": "good"}], "Line 1 of 'data.jsonl': 'human_score' must be a number, true"),
        ([], "No JSON records found in 'data.jsonl'."),
        ([GOOD, {"solution_str": "x" * 10_000_000}], "Line 2 of 'data.jsonl' is longer than 8 MiB"),
        ([{**GOOD, "score_min": 3}], "Line 1 of 'data.jsonl': 'score_max' (1) must be greater"),
        ([{**GOOD, "human_score": 3}], "Line 1 of 'data.jsonl': 'human_score' 3 is outside the scale"),
    ],
)
def test_invalid_data(cli: Cli, judge: JudgeServer, lines: list[Any], problem: str) -> None:
    write(*lines)
    assert refused(cli, judge).startswith(problem)


def test_irregular_data_file(cli: Cli, judge: JudgeServer) -> None:
    Path("data.jsonl").write_bytes(b"\x89PNG\r\n\x1a\n" + b"\x00\xff" * 5000)
    assert "Line 1 of 'data.jsonl' is not UTF-8 text" in refused(cli, judge)
    Path("data.jsonl").unlink()
    assert refused(cli, judge) == "Data path 'data.jsonl' does not exist."
    Path("data.jsonl").mkdir()
    assert "is a directory" in refused(cli, judge)
    Path("data.jsonl").rmdir()
    Path("data.jsonl").symlink_to("/dev/null")
    assert "is not a regular file" in refused(cli, judge)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["-n", "0"], "--number must be at least 1."),
        (["-r", " "], "Rubric is empty."),
        (["-r", "@absent.txt"], "Rubric file 'absent.txt' does not exist."),
        (["--score-max", "nan"], "`score_min` and `score_max` must be finite"),
        (["--score-max", "1e200"], "the scale from 0 to 1e+200 is too wide or too narrow"),
        (["--score-max", "1e-300"], "the scale from 0 to 1e-300 is too wide or too narrow"),
        (["--baseline", "absent.json"], "Baseline path 'absent.json' does not exist."),
        (["-o", "data.jsonl/out.json"], "cannot create the directory"),
        (["--config", "absent.yaml"], "Rubric config 'absent.yaml' does not exist."),
        (["--baseline", "data.jsonl"], "'data.jsonl' is not a result file of 'osmosis eval rubric'."),
        (["--model", "openai/judge"], "Judge is named twice: openai/judge."),
        (["--swap"], "--swap requires at least two calls per record."),
        (["--swap", "-n", "2"], "--swap requires two quoted texts, and line 1 of 'data.jsonl' has one."),
    ],
)
def test_invalid_arguments(cli: Cli, judge: JudgeServer, arguments: list[str], problem: str) -> None:
    write(GOOD)
    assert refused(cli, judge, *arguments).startswith(problem)
    assert score(cli, *arguments, "--json").error["code"] == "VALIDATION"


@pytest.mark.parametrize(
    "option", ["--timeout=0", "--timeout=nan", "--max-tokens=0", "--max-cost=-1", "--seed=-1"]
)
def test_usage_errors(cli: Cli, judge: JudgeServer, option: str) -> None:
    write(GOOD)
    assert option.partition("=")[0] in refused(cli, judge, option, status=2)


@pytest.mark.parametrize(
    "places",
    [["-o", "data.jsonl"], ["--report", "data.jsonl", "--force"], ["-o", "same", "--report", "same"]],
)
def test_input_is_not_overwritten(cli: Cli, judge: JudgeServer, places: list[str]) -> None:
    write(GOOD)
    before = Path("data.jsonl").read_bytes()
    assert "would be overwritten" in refused(cli, judge, *places)
    assert Path("data.jsonl").read_bytes() == before


def test_invalid_models(cli: Cli, judge: JudgeServer) -> None:
    write(GOOD)
    assert 'export ANTHROPIC_API_KEY="..."' in refused(cli, judge, model="anthropic/claude-sonnet-4-5")
    assert "'--model'" in refused(cli, judge, model="", status=2)
    assert (
        refused(cli, judge, model="opnai/gpt-5")
        == "Unknown model: opnai/gpt-5 (did you mean 'openai/gpt-5'?)."
    )
    assert "Unknown provider: qzx/model" in refused(cli, judge, model="qzx/model")


@pytest.mark.integration
@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        (["eval", "rubric", "-d", "bad.jsonl", "-r", "x", "--model", "openai/j"], 1),
        (["eval", "rubric", "-d", "good.jsonl", "-r", "x", "--model", "anthropic/j"], 1),
        (["eval-rubric", "-d", "good.jsonl", "-r", "x", "-n", "0"], 1),
    ],
)
def test_imports_for_invalid_input(arguments: list[str], status: int) -> None:
    write("{", name="bad.jsonl")
    write(GOOD, name="good.jsonl")
    found, modules = modules_after(*arguments)
    assert found == status
    assert (
        not {"litellm", "numpy", "scipy", "aiohttp", "httpx", "pyarrow", "rich", "yaml", "jinja2"} & modules
    )


# Baselines


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
def test_baseline_with_other_answers(cli: Cli) -> None:
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
@pytest.mark.parametrize(
    ("scores", "verdict"),
    [
        (
            [given - 0.1 + 0.01 * place for place, given in enumerate(BEFORE)],
            "The mean score is lower: -0.0750",
        ),
        ((0.3, 0.4, 0.4, 0.5, 0.5, 0.05), "No significant difference: +0.0083"),
    ],
)
def test_baseline_with_worse_and_equal_answers(cli: Cli, scores: Sequence[float], verdict: str) -> None:
    answers(scores, name="new")
    assert compared(cli)[1]["verdict"].startswith(f"{verdict} (95% CI -0.")


@pytest.mark.usefixtures("before")
@pytest.mark.parametrize(
    ("options", "verdict", "shown"),
    [
        (
            ("-n", "2", "--model", "openai/stern"),
            "No significant difference (another judge): +0.0000 (",
            ("models: was openai/judge, now openai/stern", "another judge than the baseline."),
        ),
        (
            ("-n", "2", "--swap", "--model", "openai/judge"),
            "No significant difference (another order of texts (--swap)): +0.0000 (",
            ("", "another order of texts (--swap) than the baseline."),
        ),
        (
            ("--score-max", "5", "--model", "openai/judge"),
            "The scores are not compared: they are on another scale.",
            ("score bounds: was 0, 1, now 0, 5", "scores are on another scale and are not compared."),
        ),
    ],
    ids=["judge", "order", "scale"],
)
def test_baseline_of_another_session(
    cli: Cli, options: tuple[str, ...], verdict: str, shown: tuple[str, str]
) -> None:
    answers(BEFORE, name="old")
    outcome, found = compared(cli, *options[:-2], "--verbose", model=options[-1])
    assert found["verdict"].startswith(verdict)
    assert shown[0] in outcome.out and shown[1] in outcome.err


def test_baseline_with_equal_scores(cli: Cli, judge: JudgeServer) -> None:
    answers([0.7] * 3)
    assert score(cli, "-o", "before.json").status == 0
    statistics = result_of("before.json")["overall_statistics"]
    assert (statistics["average"], statistics["variance"], statistics["stdev"]) == (0.7, 0.0, 0.0)
    document = result_of("before.json")
    document["overall_statistics"]["average"] = 0.7000000001
    Path("before.json").write_text(json.dumps(document))
    outcome, found = compared(cli)
    assert found["verdict"] in outcome.out and found["verdict"].startswith(
        "No significant difference: +0.0000"
    )


@pytest.mark.usefixtures("before")
@pytest.mark.parametrize("identified", [True, False])
def test_baseline_with_no_common_records(cli: Cli, identified: bool) -> None:
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
def test_baseline_with_duplicates_and_few_common_records(cli: Cli) -> None:
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
def test_baseline_with_unreadable_records(cli: Cli, judge: JudgeServer, records: Any) -> None:
    told = {"overall_statistics": {"average": 0.4}, "records": records, "inputs": {"models": [[[]]]}}
    Path("before.json").write_text(json.dumps({**told, "score_min": 0, "score_max": 1}))
    answers(AFTER)
    outcome, found = compared(cli)
    assert outcome.status == 0 and "no records with scores" in found["verdict"]
    assert found["delta_statistics"] == {"average": pytest.approx(0.225)}


def test_baseline_of_classic_command(cli: Cli, judge: JudgeServer) -> None:
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


def test_baseline_with_conversations(cli: Cli, judge: JudgeServer) -> None:
    for name, scores in (("before", BEFORE), ("after", AFTER)):
        turns = [(("user", f"q {n}"), ("assistant", f"[score {x}]")) for n, x in enumerate(scores)]
        write(*({"messages": [{"role": role, "content": said} for role, said in each]} for each in turns))
        score(cli, "-o", f"{name}.json", *(["--baseline", "before.json"] if name == "after" else []))
    assert result_of("after.json")["baseline_comparison"]["records"]["common"] == 6


# `osmosis eval-rubric`


def classic(cli: Cli, *arguments: str) -> Outcome:
    return cli("eval-rubric", "--rubric", "clarity", "--data", "data.jsonl", *arguments)


def test_classic_document(cli: Cli, judge: JudgeServer) -> None:
    configure(score_max=1)
    line = {
        "id": "i-1",
        "conversation_id": "ticket-001",
        "rubric_id": " CLARITY ",
        "solution_str": "  an answer\n with   space ",
        "metadata": {"channel": "mail"},
        "extra_info": {"metadata": {"b": 2}, "secret": "not shown to the judge"},
    }
    write(line, {"rubric_id": "other", "solution_str": "skipped"}, {"solution_str": "no rubric"})
    outcome = classic(cli, "-n", "2", "-o", "results.txt")
    assert outcome.status == 0
    document = result_of("results.txt")
    keys = ("rubric_id", "provider", "model", "number", "rubric_source", "config_path", "data_path")
    assert [document[key] for key in keys[:4]] == ["clarity", "openai", "from-yaml", 2]
    assert {*keys, "generated_at"} <= document.keys()
    assert document["rubric_source"].endswith("rubric_configs.yaml:rubrics[0]")
    assert "output_identifier" not in document
    spread = {"average": 0.5, "variance": 0.0, "stdev": 0.0, "min": 0.5, "max": 0.5}
    counts = {"total_runs": 2, "success_count": 2, "failure_count": 0}
    assert document["overall_statistics"] == {**spread, **counts}
    (record,) = document["records"]
    assert (record["id"], record["record_index"], record["conversation_id"]) == ("i-1", 1, "ticket-001")
    assert record["input_record"] == line
    run = record["runs"][1]
    assert (run["run_index"], run["status"], run["score"], run["error"]) == (2, "success", 0.5, None)
    assert run["preview"] == "an answer with space"
    assert run["raw"]["choices"][0]["message"]["content"].startswith("{")
    assert run["started_at"] <= run["completed_at"] and run["duration_seconds"] >= 0
    prompt = judge.requests[0].body["messages"][1]["content"]
    assert '"dataset_metadata"' in prompt and "not shown to the judge" not in prompt


def test_classic_failed_runs(cli: Cli, judge: JudgeServer) -> None:
    configure()
    write(
        {"rubric_id": "clarity", "solution_str": "[status 400]"},
        {"rubric_id": "clarity", "solution_str": "ok"},
    )
    outcome = classic(cli, "-o", "results")
    assert outcome.status == 1 and "2 calls: 1 failed (1 bad_request)." in outcome.err
    write({"rubric_id": "other", "solution_str": "one"})
    assert "No records in 'data.jsonl' reference rubric 'clarity'." in classic(cli).err
    (path,) = (found for found in Path("results").glob("rubric_eval_result_*.json"))
    document = result_of(str(path))
    assert document["output_identifier"] == path.stem.rpartition("_")[2]
    assert document["overall_statistics"]["failure_count"] == 1
    run = document["records"][0]["runs"][0]
    assert (run["status"], run["score"], run["outcome"]) == ("error", None, "failed")


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--rubric", " "], "Rubric is empty."),
        (["--rubric", "Clarity"], "Available ids: clarity"),
        (["-o", "folder.json"], "Output path 'folder.json' is a directory."),
    ],
)
def test_classic_invalid_arguments(cli: Cli, judge: JudgeServer, arguments: list[str], problem: str) -> None:
    configure()
    write({"rubric_id": "clarity", "solution_str": "one"})
    Path("folder.json").mkdir()
    outcome = classic(cli, *arguments)
    assert (outcome.status, outcome.out, judge.calls) == (1, "", 0)
    assert problem in outcome.err


def test_classic_missing_key(cli: Cli, judge: JudgeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    configure(model_info={"provider": "openai", "model": "m", "api_key_env": "ABSENT_API_KEY"})
    write({"rubric_id": "clarity", "solution_str": "one"})
    outcome = classic(cli, "-o", "results")
    assert 'export ABSENT_API_KEY="..."' in outcome.err and not Path("results").exists()
