"""`osmosis eval -m` as a user meets it: processes, files, and a model that is a stand-in."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from osmosis_ai.cli.agent_loop_runs import run_line
from osmosis_ai.cli.output.context import OutputContext
from osmosis_ai.controller.record import TerminalRecord
from osmosis_ai.services.classic_eval import ClassicEvalRequest
from tests.cli.agent_loops.classic_project import Project, project_with
from tests.cli.outcome import TerminalInput
from tests.datasets.builders import write_rows
from tests.standin_model import Reply, StandInModel, error_reply

pytestmark = pytest.mark.e2e


@pytest.fixture
async def model() -> AsyncIterator[StandInModel]:
    async with StandInModel() as model:
        yield model


@pytest.fixture
def project(tmp_path: Path, model: StandInModel) -> Project:
    return project_with(tmp_path, model)


def orders(*words: str) -> list[dict[str, Any]]:
    """Return a row for each order that the agent follows."""
    return [{"user_prompt": word} for word in words]


async def test_results_file_of_passing_and_failing_runs(project: Project, model: StandInModel) -> None:
    project.rows(
        {"user_prompt": "one", "bonus": 2}, *orders("reward", "unscored", "raise", "error", "nothing")
    )
    outcome = await project.eval(
        *("--n", "3", "--k", "3", "--batch-size", "4", "--pass-threshold", "0", "-o", "sub/out.json"),
        *("--temperature", "0.5", "--max-tokens", "7", "--max-turns", "4", "--seed", "5", "--plain"),
        fns=("exact", "length", "picky"),
    )
    assert outcome.status == 0, outcome.err

    # Documented: the shape, every run counted, one without a score as 0.0 that passes no threshold.
    found = json.loads((project.root / "sub" / "out.json").read_text())
    names = ["rewards:exact", "rewards:length", "rewards:picky"]
    summary = found["summary"]
    assert (summary["total_rows"], summary["total_runs"]) == (6, 18)
    # Only the eval functions asked for; the agent's own reward has a key of its own.
    assert set(summary["eval_fns"]) == set(names)
    assert (summary["reward"]["scored"], summary["reward"]["estimate"]["value"]) == (3, 0.25)
    length = summary["eval_fns"]["rewards:length"]
    assert (length["mean"], length["min"], length["max"]) == (pytest.approx((5 + 3 + 3) / 6), 0.0, 5.0)
    assert length["pass_at_1"] == length["pass_at_3"] == 0.5
    assert "pass_at_2" not in length
    picky = summary["eval_fns"]["rewards:picky"]["pass_at_k_estimates"]
    assert picky["1"]["value"] == 1.0  # 0.5 passes the threshold
    # Ours: of the runs that have a score.
    assert (length["scored"], length["unscored"]) == (9, 9)
    assert length["estimate"]["value"] == pytest.approx(11 / 3)
    assert length["estimate"]["n"] == 9 and length["estimate"]["stderr"] > 0
    rates = {k: estimate["value"] for k, estimate in length["pass_at_k_estimates"].items()}
    assert rates == {"1": 1.0, "2": 1.0, "3": 1.0}
    assert (summary["succeeded_runs"], summary["failed_runs"], summary["pending_runs"]) == (9, 9, 0)

    runs = {row["row_index"]: row["runs"] for row in found["rows"]}
    assert [run["run_index"] for run in runs[0]] == [0, 1, 2]
    first = runs[0][0]
    assert first["success"] and list(first["scores"].items()) == list(
        zip(names, (1.0, 5.0, 0.5), strict=True)
    )
    assert set(runs[1][0]["scores"]) == {"rewards:exact", "rewards:length"}
    assert runs[1][0]["reward"] == 0.25
    assert runs[1][0]["unscored"] == {"rewards:picky": "the function must return a number, not None"}
    assert "no such thing" in runs[2][0]["unscored"]["rewards:picky"]
    errors = {3: "no[/bold] answer", 4: "the agent gave up", 5: "must return a RolloutResult"}
    for index, error in errors.items():
        assert not runs[index][0]["success"] and runs[index][0]["scores"] == {}
        assert error in runs[index][0]["error"]
    # A failed run's tokens were spent all the same.
    assert runs[4][0]["tokens"] == first["tokens"] > 0
    assert runs[5][0]["tokens"] == 0
    assert summary["total_tokens"] == sum(run["tokens"] for row in runs.values() for run in row)

    # The endpoint got the name that it knows, a key of no meaning, and what the agent passed on.
    asked = [request for request in model.requests if "seed" in request.body]
    assert {request.body["model"] for request in model.requests} == {"org/model"}
    assert {request.headers["Authorization"] for request in model.requests} == {"Bearer no-key"}
    assert {(request.body["temperature"], request.body["max_tokens"]) for request in asked} == {(0.5, 7)}
    assert len({request.body["seed"] for request in asked}) == len(asked) == 15

    assert not (project.root / ".git").exists()
    assert (project.root / ".osmosis" / ".gitignore").read_text() == "*\n"


async def test_timeouts(project: Project) -> None:
    project.rows(*orders("hang", "sleep", "nan", "one"))
    outcome = await project.eval("--timeout", "5", "--batch-size", "4", "--json", fns=("sleeper", "no_truth"))
    assert outcome.status == 0, outcome.err
    records = {record["row_index"]: record for record in project.journal()}
    assert "did not finish within its 5s deadline" in records[0]["error"]
    assert records[1]["unscored"]["rewards:sleeper"] == "the function did not return within 5s"
    assert records[2]["unscored"]["rewards:sleeper"] == "the function must return a finite number, not nan"
    assert records[3]["scores"] == {"rewards:sleeper": 1.0}
    # A function that lacks a parameter that it is given scores nothing.
    assert "ground_truth" in records[3]["unscored"]["rewards:no_truth"]
    document = outcome.json
    assert (document["operation"], document["status"]) == ("eval.classic", "success")
    assert document["resource"]["summary"]["eval_fns"]["rewards:no_truth"]["scored"] == 0
    (failed,) = document["resource"]["failed_rows"]
    assert (failed["row_index"], failed["error"]) == (0, records[0]["error"])


async def test_ctrl_c_and_resume(project: Project, model: StandInModel) -> None:
    held = asyncio.Event()
    project.rows(*orders("one", "two", "held", "four"))

    def respond(body: dict[str, Any]) -> Reply:
        prompt = body["messages"][-1]["content"]
        return Reply("ok", wait_for=held if prompt == "held" else None)

    model.respond = respond
    process = await project.start(*project.words("--plain", "-o", "out.json"))
    assert process.stderr is not None
    told = b""
    while b"[2/4]" not in told:
        told += await asyncio.wait_for(process.stderr.readline(), 120)
    process.send_signal(signal.SIGINT)
    out, err = await asyncio.wait_for(process.communicate(), 120)
    assert process.returncode == 1, err
    assert b"2 of 4 runs are pending" in out and b"run the same command again" in out
    partial = json.loads((project.root / "out.json").read_text())["summary"]
    assert (partial["total_runs"], partial["pending_runs"]) == (2, 2)

    before = project.journal()
    held.set()
    outcome = await project.eval("--plain", "-o", "out.json")
    assert outcome.status == 0, outcome.err
    assert "2 of 4 runs are finished" in outcome.err
    assert [record["row_index"] for record in project.journal()] == [0, 1, 2, 3]
    assert project.journal()[:2] == before
    assert json.loads((project.root / "out.json").read_text())["summary"]["total_runs"] == 4

    # The code is part of what a run is: after a change the command begins another one.
    (project.root / "rewards.py").write_text((project.root / "rewards.py").read_text() + "\n# other\n")
    named = await project.eval("--name", project.runs[0].name)
    assert named.status == 1 and "its files were edited" in named.err


async def test_weakness_8_failed_runs_pass_no_threshold(project: Project, model: StandInModel) -> None:
    model.respond = lambda body: error_reply(400, "the prompt is not allowed")
    outcome = await project.eval("-q", "--no-probe", "--name", "r", "--pass-threshold", "0", "-o", "out.json")
    assert outcome.status == 1
    assert "none of 2 runs succeeded" in outcome.out
    found = json.loads((project.root / "out.json").read_text())
    exact = found["summary"]["eval_fns"]["rewards:exact"]
    assert not exact["pass_at_k_estimates"]
    assert (exact["mean"], exact["scored"], exact["estimate"]) == (0.0, 0, None)
    assert "the prompt is not allowed" in found["rows"][0]["runs"][0]["error"]

    model.respond = lambda body: Reply("ok")
    redo = ("-q", "--name", "r", "--pass-threshold", "0", "--retry-failed", "-o", "out.json")
    again = await project.eval(*redo)
    # Quiet means quiet, once all is well; what the user's own code prints is not for us to keep back.
    assert again == (0, "", "this module prints\n")
    assert json.loads((project.root / "out.json").read_text())["summary"]["succeeded_runs"] == 2
    assert len(project.journal()) == 4

    model.latency_s = 0.05  # so that more than `--max-time` has passed in this session
    budget = await project.eval("--name", "b", "--max-total-tokens", "1", "--plain")
    assert budget.status == 1
    assert "tokens used of '--max-total-tokens 1'" in budget.out
    assert "1 of 2 runs are pending" in budget.out
    assert "Continue: run the same command with a higher limit or none." in budget.out
    late = await project.eval("--name", "b", "--max-time", "0.01", "--plain")
    assert late.status == 1 and "passed of '--max-time 0.01'" in late.out
    assert "1 of 2 runs are pending" in late.out
    fresh = await project.eval("--name", "b", "--fresh", "--json")
    assert fresh.status == 0, fresh.err
    assert fresh.resource["summary"]["succeeded_runs"] == 2
    (aside,) = (project.root / ".osmosis" / "evals").glob("b.*")
    assert len((aside / "events.jsonl").read_text().splitlines()) == 1


async def test_api_key_is_never_written(tmp_path: Path) -> None:
    key = "sk-classic-0123456789"
    async with StandInModel(api_key=key) as model:
        project = project_with(tmp_path, model)
        refused = await project.eval("--api-key", "sk-wrong")
        assert (refused.status, refused.out) == (1, "")
        assert "Incorrect API key" in refused.err
        assert project.journal() == []
        unknown = error_reply(404, "The model `org/model` does not exist.", code="model_not_found")
        model.script(unknown)
        missing = await project.eval("--name", "unknown", OPENAI_API_KEY=key)
        assert missing.status == 1 and "does not exist" in missing.err

        said = await project.eval("--name", "good", "--api-key", key, "-o", "out.json", "--debug")
        assert said.status == 0, said.err
        written = [path for path in project.root.rglob("*") if path.is_file()]
        assert [path for path in written if key.encode() in path.read_bytes()] == []
        assert key not in said.out + said.err


async def test_built_in_model_and_parquet_rows(project: Project) -> None:
    rows = [{"system_prompt": "Be brief.", "User_Prompt": word} for word in ("reward", "one", "two")]
    write_rows(project.root, "parquet", rows)
    words = ("eval", "-m", "server:Echo", "-d", "rows.parquet", "--model", "osmosis/tiny", "--json")
    process = await project.start(*words, "--eval-fn", "rewards:length", "--offset", "1", "--limit", "1")
    out, err = await asyncio.wait_for(process.communicate(), 120)
    assert process.returncode == 0, err
    summary = json.loads(out)["resource"]["summary"]
    assert (summary["total_rows"], summary["total_runs"], summary["cost_usd"]) == (1, 1, 0.0)
    assert summary["eval_fns"]["rewards:length"]["mean"] == 3.0
    assert project.journal()[0]["source_row_index"] == 1


async def test_salvage_of_a_damaged_journal(project: Project) -> None:
    assert (await project.eval("--name", "kept", "-q")).status == 0
    (run,) = project.runs
    journal = run / "events.jsonl"
    journal.write_bytes(journal.read_bytes().replace(b'"reward":1.0', b'"reward":9.0', 1))
    refused = await project.eval("--name", "kept")
    assert refused.status == 1 and "is damaged at line 1" in refused.err
    assert "--name kept --salvage" in refused.err
    salvaged = await project.eval("--name", "kept", "--salvage", "-q", "-o", "out.json")
    assert salvaged.status == 0, salvaged.err
    results = json.loads((project.root / "out.json").read_bytes())["summary"]
    assert (results["total_runs"], results["eval_fns"]["rewards:exact"]["mean"]) == (2, 1.0)


@pytest.mark.parametrize(
    ("name", "sent"),
    [
        ("openai/org/name", "org/name"),
        ("osmosis/tiny:calm-fern-1-step-40", "osmosis/tiny:calm-fern-1-step-40"),
        ("openai/gpt-oss", "openai/gpt-oss"),
    ],
)
async def test_model_name_at_an_address(project: Project, model: StandInModel, name: str, sent: str) -> None:
    """A server may know the model with or without the prefix of its protocol."""
    model.respond = lambda body: Reply() if body["model"] == sent else error_reply(404, "no such model")
    address = ("--model", name, "--base-url", f"{model.base_url}/chat/completions/")
    outcome = await project.eval(*address, "--api-key", "given", OPENAI_API_KEY="from-env")
    assert outcome.status == 0, outcome.err
    assert model.requests[-1].body["model"] == sent
    assert model.requests[-1].headers["Authorization"] == "Bearer given"


@pytest.mark.parametrize("given", [(), ("--api-key", "given")])
async def test_bare_model_name(project: Project, model: StandInModel, given: tuple[str, ...]) -> None:
    words = ["eval", "-m", "server:agent_loop", "-d", "data.jsonl", "--model", "my-tune"]
    key = {} if given else {"OPENAI_API_KEY": "from-env"}
    process = await project.start(
        *words, "--eval-fn", "rewards:exact", *given, OPENAI_BASE_URL=model.base_url, **key
    )
    _, err = await asyncio.wait_for(process.communicate(), 120)
    assert process.returncode == 0, err
    assert model.requests[-1].body["model"] == "my-tune"
    key_sent = "given" if given else "from-env"
    assert model.requests[-1].headers["Authorization"] == f"Bearer {key_sent}"


def test_weakness_6_brackets_in_scores() -> None:
    scores = {"rewards:exact": 1.0, "rewards:style": 0.25}
    unscored = {"agent": "KeyError: [red]no[/red]"}
    record = TerminalRecord(1, 2, "r", "success", 450, tokens=1200, scores=scores, unscored=unscored)
    screen, request = (
        TerminalInput(),
        ClassicEvalRequest(module="a:b", dataset=Path("d"), model="m", eval_fns=(*scores, *unscored), n=3),
    )
    OutputContext("rich", stdout=screen, stderr=screen).note(run_line(record, 4, 6, request))
    shown = screen.getvalue().replace("\n", " ")
    assert "[rewards:exact=1.000, rewards:style=0.250, agent=unscored]" in shown
    assert "agent: KeyError: [red]no[/red]" in shown
