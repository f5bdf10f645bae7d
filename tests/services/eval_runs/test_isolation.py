"""`eval run --isolate` and `--network none`: what the rollout sees of its workspace, and what is refused beforehand."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from osmosis_ai.errors import OsmosisError
from osmosis_ai.sandbox import IsolationUnavailableError, SandboxCapability, check_sandbox
from osmosis_ai.services.eval_runs.run import local_sandbox
from osmosis_ai.workspace.layout import WorkspaceDirectory
from tests.services.eval_runs.test_run import MINIMAL_EVAL, configure, prepare, workspace

__all__ = ["workspace"]


@pytest.fixture
def works(monkeypatch: pytest.MonkeyPatch) -> None:
    found = SandboxCapability(Path("/usr/bin/bwrap"))
    monkeypatch.setattr("osmosis_ai.sandbox.check_sandbox", lambda: found)


@pytest.mark.usefixtures("works")
@pytest.mark.parametrize(
    ("asked", "network"),
    [({}, None), ({"isolate": True}, "host"), ({"network": "none"}, "none")],
)
def test_a_rollout_runs_in_a_sandbox_where_the_user_says_so(
    workspace: WorkspaceDirectory, asked: dict[str, Any], network: str | None
) -> None:
    prepared = prepare(workspace, **asked)
    sandbox = prepared.rollout.sandbox
    assert (sandbox and sandbox.network) == network
    assert prepared.provenance["isolation"] == (network and f"bubblewrap, network {network}")


@pytest.mark.usefixtures("works")
def test_options_that_do_not_go_together_and_agents_elsewhere_are_refused(
    workspace: WorkspaceDirectory,
) -> None:
    with pytest.raises(OsmosisError, match="`--rollout-port` and `--network none` do not go together"):
        prepare(workspace, network="none", rollout_port=9000)
    configure(workspace, MINIMAL_EVAL.replace('"main.py"', '"server://127.0.0.1:9000"'))
    with pytest.raises(
        OsmosisError, match=r"127\.0\.0\.1:9000 is served elsewhere: nothing here can hold it back"
    ):
        prepare(workspace, isolate=True)


def test_a_machine_that_can_hold_nothing_back_says_why(
    workspace: WorkspaceDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    absent = SandboxCapability(problem="bubblewrap is not installed", remedy="install it")
    monkeypatch.setattr("osmosis_ai.sandbox.check_sandbox", lambda: absent)
    with pytest.raises(IsolationUnavailableError, match="isolation is required, and rollouts can not be"):
        prepare(workspace, isolate=True)
    assert prepare(workspace).rollout.sandbox is None


@pytest.mark.usefixtures("works")
def test_what_a_config_asks_a_platform_for_names_the_option_that_gives_it_here(
    workspace: WorkspaceDirectory,
) -> None:
    configure(workspace, MINIMAL_EVAL + '\n[advanced.execution]\nisolation = "required"\nnetwork = "none"\n')
    (note,) = prepare(workspace).notes
    assert "`--isolate` is for its `isolation` and `--network none` is for its `network`" in note
    assert "--isolate" not in prepare(workspace, isolate=True).notes[0]
    assert "--network" not in prepare(workspace, network="none").notes[0]


@pytest.mark.integration
def test_it_sees_the_workspace_without_what_is_hidden_and_changes_nothing_of_it(tmp_path: Path) -> None:
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
