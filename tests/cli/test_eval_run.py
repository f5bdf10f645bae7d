"""`osmosis eval run` and `osmosis eval watch` as a user meets them: real processes, real files."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import sys
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from osmosis_ai.cli.options import parse_duration
from tests.evaluation.rollouts import write_rollout, write_rows
from tests.full_disk import NO_CACHED_CODE, limit_files
from tests.standin_model import Reply, StandInModel, error_reply
from tests.warm_osmosis import interrupt_twice, warm_osmosis
from tests.workspace.builders import MINIMAL_EVAL, make_workspace

CONFIG = "configs/eval/multiply.toml"


class Outcome(NamedTuple):
    status: int
    out: str
    err: str

    @property
    def resource(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.out)["resource"]
        return found


class World:
    """A workspace whose model is a stand-in, and the command line in processes of its own."""

    def __init__(self, root: Path, model: StandInModel) -> None:
        self.model = model
        self.workspace = make_workspace(root / "workspace")
        (self.workspace.root / CONFIG).write_text(MINIMAL_EVAL)
        write_rollout(self.workspace.rollouts_dir / "multiply")
        self.rows(["one", "two", "three"])

    def rows(self, prompts: list[str]) -> None:
        write_rows(self.workspace.data_dir / "multiply.jsonl", prompts)

    async def start(
        self, *arguments: str, prepare: Callable[[], None] | None = None
    ) -> asyncio.subprocess.Process:
        environment = {
            **os.environ,
            "OPENAI_API_KEY": "sk-stand-in",
            "OPENAI_BASE_URL": self.model.base_url,
            "OSMOSIS_CACHE_DIR": str(self.workspace.root.parent / "cache"),
            **NO_CACHED_CODE,
        }
        return await asyncio.create_subprocess_exec(
            *([sys.executable, "-m", "osmosis_ai"] if prepare else warm_osmosis()),
            "eval",
            *arguments,
            cwd=self.workspace.root,
            env=environment,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            preexec_fn=prepare,
        )

    async def osmosis(self, *arguments: str, prepare: Callable[[], None] | None = None) -> Outcome:
        process = await self.start(*arguments, prepare=prepare)
        out, err = await asyncio.wait_for(process.communicate(), 300)
        assert process.returncode is not None
        return Outcome(process.returncode, out.decode(), err.decode())

    async def run(self, *arguments: str, prepare: Callable[[], None] | None = None) -> Outcome:
        return await self.osmosis("run", CONFIG, "--yes", "--json", *arguments, prepare=prepare)

    async def wait_for_records(self, name: str, count: int) -> None:
        events = self.workspace.evals_dir / name / "events.jsonl"

        async def look() -> None:
            while not events.exists() or events.read_bytes().count(b"\n") < count:  # noqa: ASYNC110
                await asyncio.sleep(0.02)

        await asyncio.wait_for(look(), 300)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with StandInModel() as model:
        yield World(tmp_path, model)


@pytest.mark.e2e
async def test_a_run_uses_the_reward_range_of_its_decide_file(world: World) -> None:
    decide = (world.workspace.root / CONFIG).with_suffix(".decide.toml")
    world.rows(["reward 0.5", "reward 0.25", "reward 0.4"])
    unranged = (await world.run("--name", "unranged")).resource["metrics"]["estimates"]
    assert (unranged["reward"]["low"], unranged["reward"]["high"]) == (0.25, 0.5)

    decide.write_text("[decide]\nreward_range = [0, 2]\n")
    ranged = await world.run("--name", "ranged", "--slice", "user_prompt")
    reward = ranged.resource["metrics"]["estimates"]["reward"]
    assert 0 < reward["low"] < 0.25 and 1 < reward["high"] < 2, reward
    [whole, *_] = [part["reward"] for part in ranged.resource["slices"]]
    assert 0 < whole["high"] <= 2 and whole["low"] < whole["value"], whole
    decide.unlink()
    written = json.loads((world.workspace.evals_dir / "ranged" / "metrics.json").read_text())
    assert written["estimates"]["reward"] == reward
    read = await world.osmosis("info", "ranged", "--json")
    assert json.loads(read.out)["data"]["metrics"]["estimates"]["reward"] == reward

    decide.write_text("[decide]\nreward_range = [0, 0.4]\n")
    misfit = await world.run("--name", "misfit", "--slice", "user_prompt")
    assert misfit.resource["metrics"]["estimates"]["reward"] == unranged["reward"]
    [warning] = [
        text for text in misfit.resource["metrics"]["estimates"]["warnings"] if "reward_range" in text
    ]
    assert warning == "reward_range 0 to 0.4 is ignored: rewards range from 0.25 to 0.5"


@pytest.mark.e2e
async def test_a_grader_gets_numbers_as_the_file_has_them(world: World) -> None:
    written = ["3.14159265358979323846", "1.10", "1e5", "-0.0", "12345678901234567890123", "true"]
    world.model.respond = lambda body: Reply(content=body["messages"][-1]["content"])
    rows = [f'{{"user_prompt": "{text}", "ground_truth": {text}}}\n' for text in written]
    (world.workspace.data_dir / "multiply.jsonl").write_text("".join(rows))
    metrics = (await world.run()).resource["metrics"]
    assert metrics["estimates"]["reward"]["value"] == 1.0
    assert metrics["estimates"]["counts"]["scored"] == len(written)


@pytest.mark.e2e
async def test_any_byte_string_is_a_file_name(world: World) -> None:
    odd = os.fsdecode(b"caf\xe9")
    folder = world.workspace.rollouts_dir / "multiply" / odd
    folder.mkdir()
    for place in (folder, folder.parent, world.workspace.data_dir, (world.workspace.root / CONFIG).parent):
        (place / f"{odd}.txt").write_text("one")
    assert (await world.run("--name", "odd")).status == 0
    assert (await world.run("--name", "odd")).resource["resumed"] == 3
    (folder / f"{odd}.txt").write_text("two")
    changed = await world.run("--name", "odd")
    assert changed.status == 1 and "Changed: rollout." in json.loads(changed.err)["error"]["message"]


@pytest.mark.e2e
async def test_json_prints_one_document_with_the_keys_scripts_rely_on(world: World) -> None:
    world.rows(["one", "raise", "three"])
    outcome = await world.run()
    assert (outcome.status, outcome.err) == (0, "")
    document = json.loads(outcome.out)
    assert (document["schema_version"], document["operation"], document["status"]) == (
        1,
        "eval.run",
        "success",
    )
    assert set(document["resource"]) >= {
        *("run_name", "local_run_id", "output_path", "dataset_source", "total_work_items", "dispatched"),
        *("succeeded", "failed", "skipped", "resumed", "cancelled", "duration_ms", "metrics", "failed_rows"),
        *("git", "workspace_directory"),
    }
    assert set(document["resource"]["failed_rows"][0]) >= {
        *("row_index", "source_row_index", "run_index", "rollout_id", "error_type", "rollout_dir")
    }
    assert document["resource"]["metrics"]["pass_rate"] == pytest.approx(2 / 3)
    assert document["resource"]["metrics"]["estimates"]["pass_rate"]["value"] == 1.0
    headline = document["resource"]["headline"]
    assert (headline["scored"], headline["planned"], headline["failed_by_boundary"]) == (2, 3, {"agent": 1})
    assert headline["rows"]["total"] == 3 and headline["warnings"]
    assert document["next_steps_structured"][0]["action"] == "retry_failed"
    kept = Path(document["resource"]["output_path"]) / "config.toml"
    assert kept.read_text() == MINIMAL_EVAL

    # The config is no input: a comment in it changes no result.
    (world.workspace.root / CONFIG).write_text(f"# told later\n{MINIMAL_EVAL}")
    again = await world.run("--name", document["resource"]["run_name"])
    assert (again.status, again.resource["dispatched"]) == (0, 0)
    assert kept.read_text() == MINIMAL_EVAL


@pytest.mark.e2e
async def test_what_was_put_aside_or_copied_is_gone_on_with_and_not_the_run_of_its_name(world: World) -> None:
    world.rows(["one", "raise"])
    evals = world.workspace.evals_dir
    for arguments in ((), ("--fresh",)):
        assert (await world.run("--name", "walk", *arguments)).status == 0
    (aside,) = (path.name for path in evals.iterdir() if path.name.startswith("walk.archive-"))
    shutil.copytree(evals / "walk", evals / "copy")
    for name in (aside, "copy", "walk"):
        document = json.loads((await world.run("--name", name)).out)
        assert document["resource"]["output_path"] == str(evals / name)
        assert document["resource"]["run_name"] == name
        redo, view = (step["command"] for step in document["next_steps_structured"])
        assert f" --name {name} " in redo and redo.endswith("--retry-failed")
        assert view == f"osmosis view {name}"


@pytest.mark.parametrize("goes_on", ["--salvage", "--retry-failed"])
async def test_a_run_that_is_to_start_over_and_to_go_on_is_refused(world: World, goes_on: str) -> None:
    world.rows(["one"])
    outcome = await world.run("--name", "walk", "--fresh", goes_on)
    said = f"`--fresh` starts over and `{goes_on}` goes on: choose one."
    error = json.loads(outcome.err)["error"]
    assert (outcome.status, error["message"]) == (1, said)
    assert error["hint"].startswith("without `--fresh` the run of that name goes on; ")
    assert not world.workspace.evals_dir.exists()


@pytest.mark.parametrize("option", ["--max-cost=-1", "--max-cost=nan", "--max-tokens=0"])
async def test_a_budget_that_is_none_is_a_usage_error(world: World, option: str) -> None:
    world.rows(["one"])
    outcome = await world.run(option)
    error = json.loads(outcome.err)["error"]
    assert (outcome.status, error["code"]) == (2, "VALIDATION")
    assert f"`{option.partition('=')[0]}` must be a positive number" in error["message"]


@pytest.mark.e2e
async def test_plain_shows_the_numbers_with_their_denominators_and_the_failed_rows(world: World) -> None:
    world.rows(["one", "raise", "three"])
    outcome = await world.osmosis("run", CONFIG, "--yes", "--plain")
    assert outcome.status == 0
    assert "Pass rate (reward >= 1.0, scored samples only)\t100.0 %" in outcome.out
    assert "2 samples of 2 rows" in outcome.out
    assert "Scored\t2 of 3 planned" in outcome.out
    assert "Warning\t\t\tonly 2 of 3 finished attempts have a score (66.7 %)" in outcome.out
    assert "; scored 2 of 3 planned; failed 1: 1 agent; all 3 rows\n" in outcome.out
    assert "Unscored\t1: 1 exception" in outcome.out
    assert "the agent broke" in outcome.out
    assert "\x1b" not in outcome.out
    assert "Evaluating: 3/3" in outcome.err
    assert (world.workspace.root / ".osmosis" / ".gitignore").read_text() == "*\n"


@pytest.mark.e2e
async def test_results_are_shown_by_the_values_of_a_column(world: World) -> None:
    world.rows(["one", "raise", "three"])
    outcome = await world.osmosis("run", CONFIG, "--yes", "--plain", "--slice", "user_prompt")
    assert "By user_prompt:\n\tRows\tSamples\tPass rate" in outcome.out
    assert "one\t1\t1\t100.0 %\t2.5 – 100.0 %\t1.000" in outcome.out
    assert "raise\t1\t0\t" in outcome.out
    again = await world.run(
        "--name", outcome.out.split("\n")[0].rpartition("/")[2].rstrip("."), "--slice", "ground_truth"
    )
    assert [(each["value"], each["rows"]) for each in again.resource["slices"]] == [("ok", 3)]


@pytest.mark.e2e
async def test_it_asks_before_spending_and_tells_scripts_how_to_agree(world: World) -> None:
    outcome = await world.osmosis("run", CONFIG, "--json")
    error = json.loads(outcome.err)["error"]
    assert (outcome.status, outcome.out) == (1, "")
    assert error["code"] == "INTERACTIVE_REQUIRED"
    assert error["details"]["prompt"] == "3 rollouts x model openai/gpt-5-mini — continue?"
    assert world.model.calls == 0
    assert not list(world.workspace.evals_dir.glob("*/manifest.json"))


@pytest.mark.e2e
async def test_the_providers_own_words_reach_the_user_before_the_first_row(world: World) -> None:
    world.model.respond = lambda _: error_reply(401, "Incorrect API key provided.", code="invalid_api_key")
    outcome = await world.run()
    assert outcome.status == 1
    assert "Incorrect API key provided." in json.loads(outcome.err)["error"]["message"]
    assert "sk-stand-in" not in outcome.err


@pytest.mark.e2e
async def test_ctrl_c_once_stops_gracefully_and_the_same_command_finishes_the_run(world: World) -> None:
    world.rows([f"row {row}" for row in range(12)])
    hold = asyncio.Event()
    world.model.respond = lambda body: Reply(wait_for=hold if world.model.calls > 6 else None)
    process = await world.start("run", CONFIG, "--yes", "--json", "--max-in-flight", "2")
    found = await _first_run(world)
    await world.wait_for_records(found, 5)
    process.send_signal(signal.SIGINT)
    out, err = await asyncio.wait_for(process.communicate(), 300)
    stopped = Outcome(process.returncode or 0, out.decode(), err.decode())
    assert stopped.status == 1, stopped.err
    assert json.loads(stopped.out)["status"] == "partial"
    assert stopped.resource["cancelled"] is True
    assert stopped.resource["stopped"]["kind"] == "interrupted"

    hold.set()
    rest = await world.run("--max-in-flight", "2")
    assert rest.status == 0
    assert rest.resource["run_name"] == found
    assert rest.resource["resumed"] == stopped.resource["succeeded"]
    assert rest.resource["succeeded"] == 12


@pytest.mark.e2e
async def test_ctrl_c_twice_quits_at_once(world: World) -> None:
    hold = asyncio.Event()
    # The preflight is answered; the agents' calls are not, so a graceful stop has something to wait for.
    world.model.respond = lambda _: Reply(wait_for=hold if world.model.calls > 1 else None)
    process = await world.start("run", CONFIG, "--yes", "--plain")
    assert process.stderr is not None
    said = ""
    while "running 3 rollouts" not in said:
        said += (await asyncio.wait_for(process.stderr.readline(), 300)).decode()
    interrupt_twice(process.pid)
    said += (await asyncio.wait_for(process.communicate(), 300))[1].decode()
    assert process.returncode == 1
    assert "press Ctrl-C again" in said and "Error: Interrupted." in said
    hold.set()
    assert (await world.run()).resource["succeeded"] == 3


@pytest.mark.e2e
async def test_a_full_disk_halts_the_run_and_the_same_command_goes_on_when_there_is_room(
    world: World,
) -> None:
    world.rows([f"row {row}" for row in range(80)])
    full = await world.run("--name", "full", prepare=partial(limit_files, 9000))
    assert full.status == 1, full.err
    assert "the disk is full" in full.err
    kept = full.resource["succeeded"]
    assert 0 < kept < 80

    rest = await world.run("--name", "full")
    assert (rest.status, rest.resource["resumed"], rest.resource["succeeded"]) == (0, kept, 80)


@pytest.mark.e2e
async def test_a_run_can_be_watched_from_another_terminal(world: World) -> None:
    world.rows([f"row {row}" for row in range(6)])
    hold = asyncio.Event()
    world.model.respond = lambda _: Reply(wait_for=hold if world.model.calls > 4 else None)
    run = asyncio.create_task(world.run("--name", "seen"))
    await world.wait_for_records("seen", 2)
    watch = await world.start("watch", "seen", "--json")
    await asyncio.sleep(0)
    hold.set()
    out, err = await asyncio.wait_for(watch.communicate(), 300)
    assert (await run).status == 0
    assert watch.returncode == 0, err.decode()
    seen = json.loads(out)
    assert (seen["operation"], seen["resource"]["status"]) == ("eval.watch", "finished")
    assert (seen["resource"]["succeeded"], seen["resource"]["total_work_items"]) == (6, 6)
    assert seen["resource"]["metrics"]["graded"] == 6


@pytest.mark.e2e
async def test_watching_a_run_that_is_not_there_names_those_that_are(world: World) -> None:
    outcome = await world.osmosis("watch", "nowhere", "--json")
    assert outcome.status == 1
    assert json.loads(outcome.err)["error"]["code"] == "NOT_FOUND"


async def _first_run(world: World) -> str:
    async def look() -> str:
        while not (found := list(world.workspace.evals_dir.glob("*/manifest.json"))):  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        return found[0].parent.name

    return await asyncio.wait_for(look(), 300)


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("90s", 90), ("1.5m", 90), ("10m", 600), ("2h", 7200), (" 1d ", 86400)]
)
def test_durations_are_read_as_people_type_them(text: str, seconds: float) -> None:
    assert parse_duration(text, "--max-time") == seconds


@pytest.mark.parametrize("text", ["", "0", "-5", "10 parsecs", "1h30m", "nan"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(Exception, match="is no duration; write 90, 90s, 10m or 2h"):
        parse_duration(text, "--max-time")
