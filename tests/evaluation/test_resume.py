"""Resume: choice of the run, its lock, its inputs and their digests."""

from __future__ import annotations

import fcntl
import itertools
import json
import os
import shutil
import subprocess
import sys
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from osmosis_ai.controller.attempt import attempt_seeds, call_seed
from osmosis_ai.controller.dispatcher import choose_limit
from osmosis_ai.datasets import select_rows
from osmosis_ai.errors import ConflictError, OsmosisError, ResumeRefusedError
from osmosis_ai.evaluation import manifest as manifests
from osmosis_ai.evaluation import spec as specs
from osmosis_ai.evaluation.manifest import Manifest, RunPlan, is_running, open_run, run_lock
from osmosis_ai.evaluation.sources import ProjectSource, open_policy
from osmosis_ai.evaluation.spec import Budget, DatasetInput, EvalRunOptions, Spending, Spent
from tests.evaluation.builders import inputs, spec


def leave_run(root: Path, name: str, status: str | None, created_at: str, **changed: object) -> None:
    """Write the files of a previous session."""
    manifest = Manifest(name, inputs(**changed), {}, created_at=created_at)  # type: ignore[arg-type]
    manifest.write(root / name / "manifest.json")
    if status is not None:
        (root / name / "metrics.json").write_text(json.dumps({"eval_run": {"status": status}}))


def opened(root: Path, **options: object) -> RunPlan:
    with ExitStack() as held:
        return open_run(held, root, EvalRunOptions(**options), inputs(), "multiply")  # type: ignore[arg-type]


def test_new_run_name(tmp_path: Path) -> None:
    run = opened(tmp_path)
    stem, moment, digest = run.name.split("-")
    assert (stem, len(moment), len(digest)) == ("multiply", 16, 8)
    assert run.manifest is None
    assert not run.directory.path.exists()


@pytest.mark.parametrize("status", ["running", None])
def test_unnamed_run_continues_newest_unfinished(tmp_path: Path, status: str | None) -> None:
    leave_run(tmp_path, "old", "incomplete", "2026-01-01T00:00:00.000Z")
    leave_run(tmp_path, "killed", status, "2026-01-02T00:00:00.000Z")
    leave_run(tmp_path, "done", "finished", "2026-01-03T00:00:00.000Z")
    leave_run(tmp_path, "other", "incomplete", "2026-01-04T00:00:00.000Z", seed=1)
    run = opened(tmp_path)
    assert (run.name, run.was_found) == ("killed", True)
    assert opened(tmp_path, retry_failed=True).name == "done"
    assert opened(tmp_path, fresh=True).manifest is None


def test_running_run_is_not_continued(tmp_path: Path) -> None:
    leave_run(tmp_path, "busy", "running", "2026-01-02T00:00:00.000Z")
    with run_lock(tmp_path, "busy"):
        assert opened(tmp_path).name != "busy"
    assert opened(tmp_path).name == "busy"


def test_runs_of_the_same_second(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(specs, "stamp", lambda: "20260102T000000Z")
    with ExitStack() as one, ExitStack() as another:
        first = open_run(one, tmp_path, EvalRunOptions(), inputs(), "multiply")
        second = open_run(another, tmp_path, EvalRunOptions(), inputs(), "multiply")
        assert second.name == f"{first.name}-2" and second.manifest is None
        assert is_running(tmp_path, first.name) and is_running(tmp_path, second.name)


def test_new_run_does_not_reuse_a_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(specs, "stamp", lambda: "20260102T000000Z")
    ended: list[str] = []

    def take_second(root: Path, name: str) -> AbstractContextManager[None]:
        if not ended:
            ended.append(name)
            leave_run(root, name, "finished", "2026-01-02T00:00:00.000Z")
        return run_lock(root, name)

    monkeypatch.setattr(manifests, "run_lock", take_second)
    with ExitStack() as held:
        run = open_run(held, tmp_path, EvalRunOptions(), inputs(), "multiply")
        assert run.name == f"{ended[0]}-2" and not run.directory.path.exists()
        assert is_running(tmp_path, run.name) and not is_running(tmp_path, ended[0])


def test_named_run_needs_equal_inputs(tmp_path: Path) -> None:
    leave_run(tmp_path, "mine", "finished", "2026-01-02T00:00:00.000Z")
    leave_run(tmp_path, "theirs", "incomplete", "2026-01-02T00:00:00.000Z", seed=9)
    assert opened(tmp_path, name="mine").manifest is not None
    with pytest.raises(ResumeRefusedError, match="Changed: seed"):
        opened(tmp_path, name="theirs")
    shutil.copytree(tmp_path / "theirs", tmp_path / "copy")
    with pytest.raises(ResumeRefusedError, match="Run 'copy' cannot be continued") as refused:
        opened(tmp_path, name="copy")
    assert refused.value.details["run_name"] == "copy"
    shutil.copytree(tmp_path / "mine", tmp_path / "again")
    assert opened(tmp_path, name="again").manifest is not None


def test_fresh_archives_named_run(tmp_path: Path) -> None:
    leave_run(tmp_path, "mine", "finished", "2026-01-02T00:00:00.000Z")
    runs = [opened(tmp_path, name="mine", fresh=True)]
    leave_run(tmp_path, "mine", "finished", "2026-01-02T00:00:00.000Z")
    runs.append(opened(tmp_path, name="mine", fresh=True))
    archives = [run.archived for run in runs]
    assert all(archive is not None and (archive / "manifest.json").exists() for archive in archives)
    assert len(set(archives)) == 2


def test_directory_that_is_not_a_run(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.png").touch()
    with pytest.raises(OsmosisError, match="is not a run"):
        opened(tmp_path, name="photos")

    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / ".manifest.json.abc.tmp").touch()
    assert opened(tmp_path, name="mine").manifest is None


@pytest.mark.parametrize("name", ["", ".locks", "-x", "a/b", "..", "é", "a" * 97, "a b"])
def test_invalid_run_names(name: str) -> None:
    with pytest.raises(OsmosisError, match=r"Run name .* is invalid"):
        EvalRunOptions(name=name)


HOLD = """
import sys
from pathlib import Path
from osmosis_ai.evaluation.manifest import run_lock
with run_lock(Path(sys.argv[1]), "mine"):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.mark.integration
def test_lock_excludes_other_processes(tmp_path: Path) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"held\n"
    try:
        assert is_running(tmp_path, "mine")
        with pytest.raises(ConflictError, match="is using the run"), run_lock(tmp_path, "mine"):
            pass
    finally:
        holder.kill()
        holder.communicate()
    assert not is_running(tmp_path, "mine")
    with run_lock(tmp_path, "mine"):
        assert is_running(tmp_path, "mine")
    assert os.stat(tmp_path / ".locks" / "mine.lock").st_mode & 0o077 == 0


def test_lock_checks_do_not_see_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with run_lock(tmp_path, "mine"):
        pass
    lock, seen = fcntl.flock, list[bool]()

    def check_in_between(file: int, operation: int) -> None:
        lock(file, operation)
        if not seen:
            seen.append(True)
            seen[0] = is_running(tmp_path, "mine")

    monkeypatch.setattr(fcntl, "flock", check_in_between)
    assert not is_running(tmp_path, "mine")
    assert seen == [False]


def test_run_waits_for_slow_lock_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with run_lock(tmp_path, "mine"):
        pass
    with (tmp_path / ".locks" / "mine.lock").open("rb") as slow, ExitStack() as run:
        fcntl.flock(slow, fcntl.LOCK_SH)
        look = manifests.is_locked

        def wait_for_check(path: Path) -> bool:
            held = look(path)
            slow.close()
            return held

        monkeypatch.setattr(manifests, "is_locked", wait_for_check)
        run.enter_context(run_lock(tmp_path, "mine"))
        assert slow.closed and look(tmp_path / ".locks" / "mine.lock")


def test_manifest_round_trip(tmp_path: Path) -> None:
    manifest = Manifest("first", inputs(), {"git_head": "abc"})
    replace(manifest, provenance={"git_head": "abc", "git_branch": None}).write(tmp_path / "manifest.json")

    assert Manifest.load(tmp_path / "manifest.json") == manifest
    written = json.loads((tmp_path / "manifest.json").read_text())
    assert written["schema_version"] == 1
    assert written["provenance"] == {"git_head": "abc"}
    assert written["inputs"] == {
        "model_path": "openai/stand-in",
        "dataset": {"sha256": "d1", "selected_source_rows": "0-9"},
        "n": 1,
        "rollout": {"name": "multiply", "entrypoint": "main.py", "source_digest": "s1"},
        "env": {},
        "secret_names": [],
        "timeouts": {"agent_timeout_sec": None, "grader_timeout_sec": None},
        "seed": 0,
        "versions": {"rollout_protocol": "0.3", "dataset_normalization": 1, "state_schema": 1},
    }


def test_changed_inputs_are_listed_without_values() -> None:
    before = inputs(env={"A": "1", "B": "key-one"}, agent_workflow_timeout_s=5.0, secret_names=("KEY",))
    now = inputs(
        rows="0-2",
        source="s2",
        seed=3,
        env={"B": "key-two", "C": "3"},
        secret_names=(),
        grader_timeout_s=1.5,
        model_path="openai/other",
        n=2,
    )
    with pytest.raises(ResumeRefusedError) as refused:
        Manifest("first", before, {}).require_equal_inputs(now)
    first, *listed = refused.value.message.splitlines()
    changed = ["dataset", "env", "model_path", "n", "rollout", "secret_names", "seed", "timeouts"]
    assert f"Changed: {', '.join(changed)}." in first
    assert refused.value.details["changed"] == changed
    assert "--fresh" in (refused.value.hint or "")
    assert listed == [
        "  - dataset: the selected rows: was 0-9, now 0-2",
        "  - env: A was removed",
        "  - env: B has another value",
        "  - env: C was added",
        "  - model_path: was openai/stand-in, now openai/other",
        "  - n: was 1, now 2",
        "  - rollout: its files were edited",
        "  - secret_names: was KEY, now none",
        "  - seed: was 0, now 3",
        "  - timeouts: agent_workflow_timeout_s: was 5, now not set",
        "  - timeouts: grader_timeout_s: was not set, now 1.5",
    ]


def test_options_that_may_change_between_sessions() -> None:
    changed = inputs(batch_size=99, pass_threshold=0.0, branch="main")
    Manifest("first", inputs(), {}).require_equal_inputs(changed)


@pytest.mark.parametrize("name", ["a\n::error::pwned", "::error::pwned", "../up", "", 5])
def test_manifest_with_invalid_name(name: Any, tmp_path: Path) -> None:
    """Names are printed, and CI systems read commands from lines of output."""
    Manifest(name, inputs(), {}).write(tmp_path / "manifest.json")
    with pytest.raises(OsmosisError, match="is not a run's manifest"):
        Manifest.load(tmp_path / "manifest.json")


@pytest.mark.parametrize("content", ["", "{}", "[]", '{"schema_version": 1}', "not json", '{"a":' * 100_000])
def test_invalid_manifest(content: str, tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text(content)
    with pytest.raises(OsmosisError, match="is not a run's manifest"):
        Manifest.load(tmp_path / "manifest.json")


class TestSourceDigest:
    @pytest.fixture
    def rollout(self, tmp_path: Path) -> Path:
        directory = tmp_path / "rollout"
        (directory / "package").mkdir(parents=True)
        (directory / "main.py").write_text("print(1)\n")
        (directory / "package" / "tool.py").write_text("x = 1\n")
        return directory

    def test_changes_with_content_names_new_files_and_linked_files(
        self, rollout: Path, tmp_path: Path
    ) -> None:
        digests = {ProjectSource(rollout).source_digest()}
        (rollout / "main.py").write_text("print(2)\n")
        digests.add(ProjectSource(rollout).source_digest())
        (rollout / "main.py").rename(rollout / "start.py")
        digests.add(ProjectSource(rollout).source_digest())
        (rollout / "package" / "new.txt").symlink_to(shared := tmp_path / "shared.txt")
        for text in ("a", "b"):
            shared.write_text(text)
            digests.add(ProjectSource(rollout).source_digest())
        assert len(digests) == 5

    def test_ignores_by_products_of_tools(self, rollout: Path) -> None:
        before = ProjectSource(rollout).source_digest()
        for name in ("__pycache__", ".venv", "package/__pycache__", "multiply.egg-info", "runs"):
            (rollout / name).mkdir()
            (rollout / name / "x").write_text("1")
        (rollout / "uv.lock").write_text("lock")
        assert ProjectSource(rollout).source_digest(output_root=rollout / "runs") == before

    @pytest.mark.parametrize(("target", "kind"), [("..", "a directory"), ("nowhere", "nothing")])
    def test_refuses_links_to_directories_and_missing_files(
        self, rollout: Path, target: str, kind: str
    ) -> None:
        (rollout / "link").symlink_to(target)
        with pytest.raises(OsmosisError, match=f"symbolic link to {kind}"):
            ProjectSource(rollout).source_digest()


PROJECT = """[project]
name = "mine"
version = "0.1.0"
requires-python = ">=3.10"
dependencies = ["sympy>=1.12"]
released = 2026-01-31
"""
GRADER = (
    "from osmosis_ai.rollout.grader import Grader\nfrom checks.numbers import equal\n\n"
    "class Mine(Grader):\n    same = equal\n"
)
FILES = {
    "main.py": "from grading import Mine\nprint('agent')\n",
    "prompts.py": "SYSTEM = 'be brief'\n",
    "grading.py": GRADER,
    "checks/__init__.py": "",
    "checks/numbers.py": "from . import text\ndef equal(a, b): return a == b\n",
    "checks/text.py": "",
    "rubric.md": "be right",
    "pyproject.toml": PROJECT,
}
ONE_FILE = """import re
import json
from prompts import SYSTEM
from osmosis_ai.rollout.agent_workflow import AgentWorkflow
from osmosis_ai.rollout.grader import Grader

TURNS = 4
ANSWER = re.compile("####")


class Mine(AgentWorkflow):
    async def run(self, ctx):
        return SYSTEM * TURNS, call_tool(ctx)


class Right(Grader):
    async def grade(self, ctx):
        ctx.set_reward(score(ANSWER, ctx))


def call_tool(ctx):
    return json.dumps(ctx)


def score(pattern, ctx):
    return THRESHOLD


THRESHOLD = 0.5


def main():
    serve(workflow=Mine, grader=Right)


if __name__ == "__main__":
    main()
"""


def digest(root: Path, *, env: dict[str, str] | None = None, timeout_s: float = 30.0, **files: str) -> str:
    """Return the grader digest of a rollout with these files replaced; "" removes one."""
    shutil.rmtree(root / "mine", ignore_errors=True)
    for name, text in {**FILES, **files}.items():
        path = root / "mine" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if text or name not in files:
            path.write_bytes(text.encode("latin-1"))
    found = ProjectSource(root / "mine").grader_digest(spec(grader_timeout_s=timeout_s, env=env or {}))
    assert found is not None
    return found


@pytest.mark.parametrize("name", FILES)
def test_grader_digest_covers_files_of_the_grader(tmp_path: Path, name: str) -> None:
    changed = (
        FILES[name].replace("same = equal", "same = None or equal").replace("1.12", "1.13") + "# other\n"
    )
    counts = name not in ("main.py", "prompts.py")
    assert (digest(tmp_path, **{name: changed, "uv.lock": "left by a tool"}) != digest(tmp_path)) is counts


@pytest.mark.parametrize("content", ["[project]\nname = '\xff'\n", "a = " + "[" * 5000, "a = nan\n"])
def test_grader_digest_of_invalid_pyproject(tmp_path: Path, content: str) -> None:
    before, after = ({"pyproject.toml": text} for text in (content, content.replace("a", "e")))
    assert digest(tmp_path, **before) != digest(tmp_path, **after)


@pytest.mark.parametrize(
    ("grading", "counts"),
    [
        ("Mine = object\n", True),
        (GRADER + "import importlib\nimportlib.import_module('pro' + 'mpts')\n", True),
        ("class (Grader):\n", True),
        ("import osmosis_ai\n@osmosis_ai.osmosis_reward\ndef score(a, b, c): ...\n", False),
    ],
)
def test_grader_digest_without_known_grader(tmp_path: Path, grading: str, counts: bool) -> None:
    files = {"grading.py": grading}
    assert (
        digest(tmp_path, **files) != digest(tmp_path, **files, **{"prompts.py": "SYSTEM = ''\n"})
    ) is counts


def digest_of_one_file(root: Path, text: str, **options: Any) -> str:
    return digest(root, **options, **{"grading.py": "", "main.py": text})


@pytest.mark.parametrize(
    ("said", "instead", "counts"),
    [
        ("SYSTEM * TURNS", "SYSTEM", False),
        ("TURNS = 4", "TURNS = 8", False),
        ("json.dumps(ctx)", "'no tool'", False),
        ("import json", "import json, random", False),
        ("class Mine", "# the agent\n\n\nclass Mine", False),
        ("set_reward(score", "set_reward(1 - score", True),
        ("return THRESHOLD", "return 1", True),
        ("THRESHOLD = 0.5", "THRESHOLD = 0.6", True),
        ('compile("####")', 'compile("===")', True),
        ("import re", "import regex as re", True),
        ("grader=Right", "grader=Other", True),
        ("    main()", "    Right.grade = print", True),
        ("class Right(Grader)", "@patched\nclass Right(Grader)", True),
        ("score(ANSWER, ctx)", "score(ANSWER, globals())", True),
    ],
)
def test_grader_digest_of_a_shared_file(tmp_path: Path, said: str, instead: str, counts: bool) -> None:
    assert said in ONE_FILE
    changed = digest_of_one_file(tmp_path, ONE_FILE.replace(said, instead))
    assert (changed != digest_of_one_file(tmp_path, ONE_FILE)) is counts


def test_grader_digest_of_agent_timeout_and_variable(tmp_path: Path) -> None:
    graded = ONE_FILE.replace("score(ANSWER, ctx)", "Mine.reward(ctx)")
    texts = (graded, graded.replace("TURNS = 4", "TURNS = 8"))
    assert len({digest_of_one_file(tmp_path, text) for text in texts}) == 2
    assert len({digest(tmp_path), digest(tmp_path, timeout_s=5.0), digest(tmp_path, env={"JUDGE": "x"})}) == 3


READS = "os.environ.get('{}', '1')"


@pytest.mark.parametrize(
    ("agent", "grader", "counts"),
    [
        (READS.format("HEAT"), "0", False),
        (READS.format("HEAT"), READS.format("STRICT"), False),
        ("0", READS.format("HEAT"), True),
        (READS.format("HEAT"), READS.format("HEAT"), True),
        ("0", "0", True),
        (READS.format("HEAT"), "os.environ[prefix + 'AT']", True),
        (READS.format("HEAT"), 'os.environ.get(f"{prefix}AT")', True),
        (READS.format("HEAT"), "os.environ['HE' 'AT']", True),
        (READS.format("HEAT"), "os.getenv(name)", True),
        (READS.format("HEAT"), "run(env=os.environ)", True),
    ],
)
def test_grader_digest_of_agent_variables(tmp_path: Path, agent: str, grader: str, counts: bool) -> None:
    source = ONE_FILE.replace("SYSTEM * TURNS", agent).replace("return THRESHOLD", f"return {grader}")
    digests = {digest_of_one_file(tmp_path, source, env={"HEAT": heat}) for heat in "12"}
    assert (len(digests) == 2) is counts


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    path = tmp_path / "rows.jsonl"
    lines = [json.dumps({"user_prompt": f"say {row}", "ground_truth": str(row)}) for row in range(10)]
    path.write_text("\n".join(lines) + "\n")
    return path


def test_dataset_rows_up_to_last_selected(rows: Path) -> None:
    with pytest.raises(OsmosisError, match="no longer has row 10"):
        list(DatasetInput(rows, "rows", "d", "path").rows(select_rows(12, limit=None, rows=None)))

    with rows.open("a") as out:
        out.write("not json\n")
    found = list(DatasetInput(rows, "rows", "d", "path").rows(select_rows(11, limit=4, rows=None)))
    assert [index for index, _ in found] == [0, 1, 2, 3]


def test_call_seeds_are_unique_and_stable() -> None:
    calls = itertools.product(range(3), range(5), range(4), range(3))
    seeds = {call_seed(run, row, attempt, call) for run, row, attempt, call in calls}
    assert len(seeds) == 3 * 5 * 4 * 3
    assert all(0 <= seed < 2**31 for seed in seeds)
    assert call_seed(7, 3, 1, 0) == 2011495658
    assert attempt_seeds(7, 3, 1)(2) == call_seed(7, 3, 1, 2)


@pytest.mark.parametrize(
    ("limits", "spent", "reason"),
    [
        ({}, (1, 0, None), None),
        ({"max_cost_usd": 0.5}, (1, 99, 0.49), None),
        ({"max_cost_usd": 0.5}, (1, 99, 0.5), "--max-cost 0.5"),
        ({"max_tokens": 100}, (1, 60, None), None),
        ({"max_tokens": 100}, (1, 61, None), "--max-tokens 100"),
        ({"max_cost_usd": 1}, (1, 5, None), "cost of a model call is unknown"),
        ({"max_tokens": 99}, (1, 0, 0.0), "does not report token counts"),
        ({"max_cost_usd": 1, "max_tokens": 99}, (0, 0, None), None),
        ({"max_time_s": 61}, (1, 1, 0.0), None),
        ({"max_time_s": 60}, (1, 1, 0.0), "--max-time 60"),
    ],
)
def test_exhausted_budget(
    limits: dict[str, float], spent: tuple[int, int, float | None], reason: str | None
) -> None:
    clock = iter([1000.0, *[1010.0] * 9])
    spending = Spending(Budget(**limits), earlier_s=50, clock=lambda: next(clock))  # type: ignore[arg-type]
    calls, tokens, cost_usd = spent
    spending.add(calls=calls, tokens=tokens, cost_usd=cost_usd)
    found = spending.exhausted(lambda: Spent(39, 0.0))
    assert reason in found if reason and found else found is reason


async def test_policy_environment() -> None:
    variables = {
        "ANTHROPIC_API_KEY": "k",
        "AWS_REGION_NAME": "eu-west-1",
        "LD_PRELOAD": "/evil.so",
        "AWS_CONFIG_FILE": "/evil",
        "GIT_SSH_COMMAND": "/evil",
    }
    before = dict(os.environ)
    async with open_policy("anthropic/claude-x", variables, lambda error: None) as endpoint:
        added = {name: value for name, value in os.environ.items() if before.get(name) != value}
    assert endpoint.api_key == "k"
    assert added == {"ANTHROPIC_API_KEY": "k", "AWS_REGION_NAME": "eu-west-1"}
    assert dict(os.environ) == before


@pytest.mark.parametrize(
    ("option", "config", "capacity", "limit"),
    [(None, None, None, 32), (None, 16, 20, 16), (8, 16, None, 8), (8, 16, 4, 4), (500, None, None, 500)],
)
def test_in_flight_limit(option: int | None, config: int | None, capacity: int | None, limit: int) -> None:
    assert choose_limit(max_in_flight=option, batch_size=config, capacity=capacity) == limit
