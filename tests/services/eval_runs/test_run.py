"""`eval run`: its options, the sandbox of its rollout, and watching."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from osmosis_ai.controller.record import TerminalRecord
from osmosis_ai.errors import NotFoundError, OsmosisError
from osmosis_ai.evaluation.manifest import Manifest, run_lock
from osmosis_ai.evaluation.spec import Budget, EvalRunOptions
from osmosis_ai.sandbox.isolation import IsolationUnavailableError, SandboxCapability, check_sandbox
from osmosis_ai.services.eval_runs.local_runs import RunWatcher
from osmosis_ai.services.eval_runs.run import EvalRunRequest, PreparedEvalRun, local_sandbox, prepare_eval_run
from osmosis_ai.services.runs.lifecycle import watch_run
from osmosis_ai.workspace.layout import WorkspaceDirectory
from tests.evaluation.builders import inputs, record
from tests.evaluation.recorded_runs import append_records, journal_of
from tests.evaluation.rollouts import write_rows
from tests.workspace.builders import MINIMAL_EVAL, git, make_workspace

CONFIG = Path("configs/eval/multiply.toml")


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> WorkspaceDirectory:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-test")
    for name in ("OPENAI_BASE_URL", "OPENAI_API_BASE"):
        monkeypatch.delenv(name, raising=False)
    workspace = make_workspace(tmp_path / "workspace")
    (workspace.root / CONFIG).write_text(MINIMAL_EVAL)
    write_rows(workspace.data_dir / "multiply.jsonl", ["1 * 1", "2 * 2", "3 * 3"])
    monkeypatch.chdir(workspace.root)
    return workspace


def prepare(workspace: WorkspaceDirectory, **changed: Any) -> PreparedEvalRun:
    request = EvalRunRequest(**{"config": CONFIG, **changed})
    return prepare_eval_run(request)


def configure(workspace: WorkspaceDirectory, text: str) -> None:
    (workspace.root / CONFIG).write_text(text)


def test_previews_setting(workspace: WorkspaceDirectory) -> None:
    assert prepare(workspace).options.previews
    assert not prepare(workspace, run=EvalRunOptions(previews=False)).options.previews
    decided = workspace.root / CONFIG.with_name("multiply.decide.toml")
    decided.write_text("[decide]\npreviews = false\n")
    assert not prepare(workspace).options.previews
    decided.unlink()
    configure(workspace, MINIMAL_EVAL + "\n[advanced]\npreviews = false\n")
    prepared = prepare(workspace)
    assert (prepared.options.previews, prepared.notes) == (False, ())


def test_dataset_file_option(workspace: WorkspaceDirectory, tmp_path: Path) -> None:
    rows = write_rows(tmp_path / "mine.jsonl", ["5 * 5"])
    prepared = prepare(workspace, dataset_file=rows)
    assert (prepared.dataset.source, len(prepared.selection)) == ("explicit", 1)
    with pytest.raises(NotFoundError, match=r"Dataset file .* not found"):
        prepare(workspace, dataset_file=tmp_path / "none.jsonl")


def test_missing_api_key(workspace: WorkspaceDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY")
    with pytest.raises(OsmosisError, match="OPENAI_API_KEY is not set"):
        prepare(workspace)
    prepare(workspace, secret_values={"OPENAI_API_KEY": "sk-file"})
    configure(workspace, MINIMAL_EVAL.replace("required = []", 'required = ["OPENAI_API_KEY"]'))
    prepare(workspace)


def test_adapter_of_a_platform(workspace: WorkspaceDirectory) -> None:
    configure(workspace, MINIMAL_EVAL.replace("openai/gpt-5-mini", "osmosis/tiny:copper-40"))
    with pytest.raises(OsmosisError) as caught:
        prepare(workspace)
    assert caught.value.hint and f"osmosis eval submit {CONFIG}" in caught.value.hint


def test_cost_limit_needs_a_price(workspace: WorkspaceDirectory) -> None:
    budget = Budget(max_cost_usd=1.0)
    prepare(workspace, run=EvalRunOptions(budget=budget))
    configure(workspace, MINIMAL_EVAL.replace("gpt-5-mini", "no-such-model-9"))
    prepare(workspace)
    with pytest.raises(OsmosisError, match="The price of 'openai/no-such-model-9' is unknown"):
        prepare(workspace, run=EvalRunOptions(budget=budget))


def test_origin_without_password(workspace: WorkspaceDirectory) -> None:
    git(workspace.root, "remote", "add", "origin", "https://me:secret@example.org/a/b.git")
    assert prepare(workspace).origin == "https://example.org/a/b.git"


def test_slices(workspace: WorkspaceDirectory) -> None:
    (workspace.root / "configs/eval/multiply.decide.toml").write_text('[decide]\nslices = ["ground_truth"]\n')
    assert prepare(workspace, slices=("user_prompt", "ground_truth")).slices == (
        "user_prompt",
        "ground_truth",
    )
    with pytest.raises(OsmosisError, match="has no column 'ground_thruth'") as refused:
        prepare(workspace, slices=("ground_thruth",))
    assert refused.value.hint == "did you mean 'ground_truth'?"


@pytest.fixture
def works(monkeypatch: pytest.MonkeyPatch) -> None:
    found = SandboxCapability(Path("/usr/bin/bwrap"))
    monkeypatch.setattr("osmosis_ai.sandbox.isolation.check_sandbox", lambda: found)


@pytest.mark.usefixtures("works")
@pytest.mark.parametrize(
    ("asked", "network"),
    [({}, None), ({"isolate": True}, "host"), ({"network": "none"}, "none")],
)
def test_isolation_options(workspace: WorkspaceDirectory, asked: dict[str, Any], network: str | None) -> None:
    prepared = prepare(workspace, **asked)
    sandbox = prepared.rollout.sandbox
    assert (sandbox and sandbox.network) == network
    assert prepared.provenance["isolation"] == (network and f"bubblewrap, network {network}")


@pytest.mark.usefixtures("works")
def test_isolation_conflicts(workspace: WorkspaceDirectory) -> None:
    with pytest.raises(OsmosisError, match="'--rollout-port' and '--network none' are mutually exclusive"):
        prepare(workspace, network="none", run=EvalRunOptions(rollout_port=9000))
    configure(workspace, MINIMAL_EVAL.replace('"main.py"', '"server://127.0.0.1:9000"'))
    with pytest.raises(OsmosisError, match=r"127\.0\.0\.1:9000 cannot be sandboxed on this machine"):
        prepare(workspace, isolate=True)


def test_isolation_unavailable(workspace: WorkspaceDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    absent = SandboxCapability(problem="bubblewrap is not installed", remedy="install it")
    monkeypatch.setattr("osmosis_ai.sandbox.isolation.check_sandbox", lambda: absent)
    with pytest.raises(IsolationUnavailableError, match="isolation is required, and rollouts cannot be"):
        prepare(workspace, isolate=True)
    assert prepare(workspace).rollout.sandbox is None


@pytest.mark.usefixtures("works")
def test_execution_settings_note(workspace: WorkspaceDirectory) -> None:
    configure(workspace, MINIMAL_EVAL + '\n[advanced.execution]\nisolation = "required"\nnetwork = "none"\n')
    (note,) = prepare(workspace).notes
    assert "`--isolate` is for its `isolation` and `--network none` is for its `network`" in note
    assert "--isolate" not in prepare(workspace, isolate=True).notes[0]
    assert "--network" not in prepare(workspace, network="none").notes[0]


@pytest.mark.integration
def test_sandbox_view_of_the_workspace(tmp_path: Path) -> None:
    if not (found := check_sandbox()).works:
        pytest.skip(found.said)
    outside, root = tmp_path / "outside", tmp_path / "workspace"
    for path in ("rollouts/r/main.py", "data/rows.jsonl", ".env", ".osmosis/evals/earlier/events.jsonl"):
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text("here")
    outside.mkdir()
    (outside / "secret").write_text("canary")
    (root / "link").symlink_to(outside)
    rollout = root / "rollouts" / "r"
    sandbox = local_sandbox(root, rollout, network="host", port=None)
    looking = f"""
        cat main.py {root}/data/rows.jsonl; echo changed > main.py; echo changed > {root}/data/rows.jsonl
        cat {root}/.env {root}/.osmosis/evals/earlier/events.jsonl {root}/link/secret {outside}/secret
    """
    program = sandbox.command(["/bin/sh", "-c", looking], cwd=rollout, writable=[])
    with program.start({"PATH": "/usr/bin:/bin"}) as begun:
        seen = subprocess.run(
            begun.command, env=begun.env, pass_fds=begun.fds, capture_output=True, text=True, check=False
        )
    assert seen.stdout == "herehere", seen.stderr
    assert (rollout / "main.py").read_text() == (root / "data" / "rows.jsonl").read_text() == "here"


def write(run_dir: Path, *records: TerminalRecord) -> None:
    append_records(run_dir / "events.jsonl", records)


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """A run of three rows and two attempts that has just begun."""
    workspace = make_workspace(tmp_path / "workspace")
    directory = workspace.evals_dir / "mine"
    Manifest("mine", inputs(rows="0-2", n=2), {}).write(directory / "manifest.json")
    return directory


def test_half_written_line(run_dir: Path) -> None:
    line = journal_of([record(0, 0)])
    (run_dir / "events.jsonl").write_bytes(line[:20])
    watcher = RunWatcher(run_dir)
    assert watcher.look().progress.completed == 0
    (run_dir / "events.jsonl").write_bytes(line)
    assert watcher.look().progress.completed == 1


def test_watching_until_the_lock_is_free(run_dir: Path) -> None:
    seen = []
    lock = run_lock(run_dir.parent, "mine")
    lock.__enter__()
    moments = iter(
        [
            lambda: write(run_dir, record(0, 0), record(0, 1, reward=0.0)),
            lambda: write(run_dir, record(1, 0, status="failed", reward=None)),
            lambda: write(run_dir, *(record(row, run) for row, run in ((1, 1), (2, 0), (2, 1)))),
            lambda: lock.__exit__(None, None, None),
        ]
    )
    watcher = RunWatcher(run_dir)
    looks = watch_run(watcher.look, pause=lambda: next(moments)(), tell=pytest.fail)
    for state in looks:
        seen.append((state.status, state.progress.completed, state.progress.failed))

    assert seen == [
        ("running", 0, 0),
        ("running", 2, 0),
        ("running", 3, 1),
        ("running", 6, 1),
        ("finished", 6, 1),
    ]
    progress = watcher.look().progress
    assert (progress.scored, progress.passed, progress.tokens) == (5, 4, 42)


def test_pinned_commit_and_advanced_notes(workspace: WorkspaceDirectory) -> None:
    git(workspace.root, "add", ".")
    git(workspace.root, "commit", "--quiet", "-m", "first")
    pinned = MINIMAL_EVAL.replace("[secrets]", 'commit_sha = "0123456789"\n\n[advanced]\nx = 1\n\n[secrets]')
    configure(workspace, pinned)
    prepared = prepare(workspace)
    assert any("pins commit 0123456789" in note for note in prepared.notes)
    assert any("[advanced]" in note for note in prepared.notes)
    assert prepared.provenance["advanced"] == {"x": 1}
    assert prepared.provenance["git_head"] == git(workspace.root, "rev-parse", "HEAD")
