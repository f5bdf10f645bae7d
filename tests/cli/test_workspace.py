"""`osmosis workspace`, `check` and `doctor`."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from osmosis_ai.sandbox.isolation import SandboxCapability
from osmosis_ai.workspace.layout import WorkspaceDirectory
from tests.cli.conftest import Cli
from tests.cli.golden_accounts import LAB
from tests.cli.maze import Maze
from tests.cli.outcome import Outcome
from tests.logins import FERN, IDENTITY, NOT_CONNECTED, VERIFIED, save_login, use_platform
from tests.workspace.builders import (
    MINIMAL_EVAL,
    MINIMAL_TRAINING,
    git,
    make_repository,
    make_workspace,
    write_config,
)

LOST = {"id": "ws_2", "name": "Moss", "connected_repo": None, "role": None, "extra": 1}


@pytest.fixture
def member(maze: Maze) -> Maze:
    """A member of fern-lab, whose repository is this one, and of Moss, which has none."""
    maze.get("/workspaces").respond(json={"workspaces": [LAB, LOST]})
    maze.get("/verify").respond(json=VERIFIED)
    return maze


def switch(maze: Maze, name: str) -> Outcome:
    return maze.osmosis("workspace", "switch", name, "--json")


def test_switch(member: Maze) -> None:
    outside, root = member.workspace.root.parent, member.workspace.root
    member.patch.chdir(outside)
    assert switch(member, "fern-lab").error["hint"].startswith("git clone")
    member.patch.chdir(root)
    assert member.osmosis("workspace", "current", "--json").status == 0
    assert switch(member, "fern-lab").json["status"] == "noop"
    member.patch.chdir(outside)
    for name in ("fern-lab", "ws_1", "FERN-LAB"):
        envelope = switch(member, name).json
        assert (envelope["operation"], envelope["status"]) == ("workspace.switch", "success")
        assert envelope["resource"]["workspace_directory"] == str(root)


def test_switch_to_unknown_workspace(member: Maze) -> None:
    error = switch(member, "fernlab").error
    assert (error["code"], error["details"]["workspaces"]) == ("NOT_FOUND", ["fern-lab", "Moss"])
    assert "Did you mean 'fern-lab'" in error["message"]
    error = switch(member, "Moss").error
    assert "No checkout" in error["message"] and "connect a repository" in error["hint"]
    member.get("/workspaces").respond(json={"workspaces": []})
    assert switch(member, "x").error["hint"] == "ask the owner of a workspace to add you"


@pytest.mark.parametrize(
    "content",
    [
        *("", "[]", "null", "{", "[" * 100_000),
        '{"version": 2, "platforms": {}}',
        '{"version": 1, "platforms": 7}',
        f'{{"version": 1, "platforms": {{"{FERN}": ["x"]}}}}',
        f'{{"version": 1, "platforms": {{"{FERN}": {{"ws_1": 7}}}}}}',
        '{"version": 1, "platforms": {"https://other.example": {"ws_1": "/gone"}}}',
    ],
)
def test_file_of_workspace_directories(member: Maze, home: Path, content: str) -> None:
    path, root = home / ".config/osmosis/workspace-directories.json", member.workspace.root
    path.write_text(content)
    member.patch.chdir(root.parent)
    assert switch(member, "fern-lab").error["code"] == "NOT_FOUND"
    member.patch.chdir(root)
    assert member.osmosis("workspace", "list").status == 0
    written = json.loads(path.read_text())
    assert (written["version"], written["platforms"][FERN]) == (1, {"ws_1": str(root)})
    assert ("https://other.example" in written["platforms"]) == ("other" in content)


def test_unwritable_file_of_workspace_directories(member: Maze, home: Path) -> None:
    (home / ".config/osmosis/workspace-directories.json").mkdir()
    assert member.osmosis("workspace", "current").status == 0


@pytest.mark.parametrize(
    "reply",
    [
        {"status_code": 200, "json": {**VERIFIED, "workspace": None}},
        {"status_code": 404, "json": NOT_CONNECTED},
        {"status_code": 403, "json": {"error": "no", "code": "GIT_SCOPE_HEADER_ACCESS_DENIED"}},
    ],
)
def test_unconnected_repository(maze: Maze, reply: dict[str, Any]) -> None:
    maze.get("/verify").respond(**reply)
    error = maze.osmosis("workspace", "current", "--json").error
    assert IDENTITY in error["message"]
    assert "osmosis platform connect ssh://git@github.com/Fern/Maze.git" in error["hint"]


def test_order_of_problems(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refusal(directory: Path) -> dict[str, Any]:
        monkeypatch.chdir(directory)
        return cli("dataset", "list", "--json").error

    use_platform(monkeypatch)
    root = tmp_path / "w"
    root.mkdir()
    assert refusal(root)["code"] == "WORKSPACE_REQUIRED"
    make_repository(root)
    assert "osmosis doctor --fix" in refusal(root)["message"]
    inner = make_workspace(root / "inner").root
    error = refusal(inner)
    assert (error["code"], "`origin`" in error["message"]) == ("VALIDATION", True)
    assert error["hint"] == f"git -C {inner} remote add origin URL"
    git(inner, "remote", "add", "upstream", "https://example.com/fern/maze.git")
    assert refusal(inner)["hint"] == f"git -C {inner} remote rename upstream origin"
    git(inner, "remote", "add", "origin", "https://github.com/only-an-owner")
    assert "exactly one GitHub repository" in refusal(inner)["message"]
    git(inner, "remote", "set-url", "origin", "https://github.com/fern/maze")
    assert refusal(inner)["message"] == "Not logged in. Run 'osmosis auth login' first."
    save_login(expires_at=datetime(2020, 1, 1, tzinfo=timezone.utc))
    error = refusal(inner)
    assert (error["code"], error["message"]) == ("AUTH_REQUIRED", f"Your session on {FERN} has expired.")


def test_platform_warnings(maze: Maze) -> None:
    headers = {"X-Osmosis-Version-Status": "deprecated", "X-Osmosis-Version-Message": "Upgrade soon."}
    maze.get("/datasets").respond(json={"datasets": []}, headers=headers)
    warning = json.loads(maze.osmosis("dataset", "list", "--json").err)["warning"]
    assert (warning["message"], warning["code"]) == ("Upgrade soon.", "DEPRECATED")


@pytest.mark.parametrize(
    "origin", ["https://ada:canary@example.org/a/b.git", "https://ada:canary@github.com/a"]
)
def test_doctor_hides_origin_credentials(cli: Cli, tmp_path: Path, origin: str) -> None:
    root = make_workspace(tmp_path).root
    git(root, "remote", "add", "origin", origin)
    outcome = cli("doctor", str(root), "--fix", "--json")
    assert outcome.status == 0 and "canary" not in outcome.out + outcome.err
    about = outcome.resource["git"]
    assert about["remote_url"] == origin.replace("ada:canary@", "")
    if "example.org" not in origin:
        assert about["identity"] is None
        assert "exactly one GitHub repository" in about["warning"]


ROWS = "".join(json.dumps({"user_prompt": f"{n} + 1?", "ground_truth": str(n + 1)}) + "\n" for n in range(5))


@pytest.fixture
def workspace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, warm_children_without_torch: None
) -> WorkspaceDirectory:
    """A workspace without an origin, without a login."""
    made = make_workspace(tmp_path / "agents")
    write_config(made, MINIMAL_EVAL)
    write_config(made, MINIMAL_TRAINING, kind="training")
    (made.data_dir / "multiply.jsonl").write_text(ROWS)
    monkeypatch.chdir(made.root)
    monkeypatch.setenv("OSMOSIS_CONFIG_DIR", str(tmp_path / "nobody"))
    return made


def entrypoint(workspace: WorkspaceDirectory, text: str) -> None:
    (workspace.rollouts_dir / "multiply" / "main.py").write_text(text)


def problems(cli: Cli, *arguments: str) -> list[dict[str, Any]]:
    """Run a check that fails, and return what it found."""
    error = cli("check", "--json", *arguments).error
    assert error["code"] == "VALIDATION"
    found: list[dict[str, Any]] = error["details"]["problems"]
    return found


def test_check_reports_all_problems(cli: Cli, workspace: WorkspaceDirectory) -> None:
    write_config(workspace, MINIMAL_EVAL + "\n[evaluation]\nlimt = 3\nn = 'four'\n", name="b.toml")
    write_config(workspace, MINIMAL_EVAL.replace("[secrets]", "[secrets"), name="c.toml")
    write_config(workspace, MINIMAL_EVAL.replace("openai/gpt-5-mini", "osmosis/tinny"), name="d.toml")
    training = MINIMAL_TRAINING.replace("openai/gpt-5-mini", "osmosis/tinny")
    write_config(workspace, training, kind="training")
    entrypoint(workspace, "x = 1\nraise RuntimeError('no GPU')\n")
    (workspace.data_dir / "multiply.jsonl").write_text(ROWS + '{"user_prompt": \n')
    found = problems(cli)
    assert {(each["file"], each.get("line"), each.get("key")) for each in found} == {
        ("configs/eval/b.toml", 11, "evaluation.limt"),
        ("configs/eval/b.toml", 12, "evaluation.n"),
        ("configs/eval/c.toml", 7, None),
        ("configs/eval/d.toml", 4, "experiment.model_path"),
        ("configs/training/a.toml", 4, "experiment.model_path"),
        ("rollouts/multiply/main.py", 2, None),
        ("data/multiply.jsonl", 6, None),
    }
    said = cli("check", "--plain").err
    assert "configs/eval/b.toml:11: evaluation.limt: Unrecognized key (did you mean 'limit'?)" in said
    assert "rollouts/multiply/main.py:2: RuntimeError: no GPU" in said
    assert "data/multiply.jsonl:6: not valid JSON" in said


def test_check_no_import(cli: Cli, workspace: WorkspaceDirectory, tmp_path: Path) -> None:
    touched = tmp_path / "touched"
    entrypoint(workspace, f"open({str(touched)!r}, 'w')\nraise RuntimeError\n")
    done = cli("check", "--no-import", "--json")
    assert (done.status, touched.exists()) == (0, False)
    assert done.resource["unchecked"] == ["rollouts/multiply/main.py was not imported (--no-import)."]
    plain = cli("check", "--no-import", "--plain").out
    assert "Not checked: rollouts/multiply/main.py was not imported" in plain


def test_check_import_timeout(cli: Cli, workspace: WorkspaceDirectory) -> None:
    entrypoint(workspace, "import threading\nthreading.Event().wait()\n")
    (found,) = problems(cli, "--import-timeout", "1")
    assert found["message"] == "`rollouts/multiply/main.py` was still importing after 1 s."


def test_check_unchecked(cli: Cli, workspace: WorkspaceDirectory) -> None:
    entrypoint(workspace, "import no_such_package_at_all\n")
    write_config(workspace, MINIMAL_EVAL.replace('dataset = "multiply"', 'dataset = "multiplly"'))
    (workspace.root / "configs" / "training" / "a.toml").unlink()
    pinned = MINIMAL_EVAL.replace("\n\n[secrets]", '\nbranch = "next"\n\n[secrets]')
    write_config(workspace, pinned, name="pinned.toml")
    done = cli("check", "--json")
    assert done.status == 0, done.err
    missing, dataset, branch = done.resource["unchecked"]
    assert "no_such_package_at_all" in missing
    assert "data/ has no dataset 'multiplly'" in dataset and "did you mean 'multiply'?" in dataset
    assert "configs/eval/pinned.toml takes rollouts/multiply/main.py from next" in branch


def test_check_strict(cli: Cli, workspace: WorkspaceDirectory) -> None:
    (workspace.data_dir / "multiply.jsonl").write_text(ROWS + '{"user_prompt": "?", "ground_truth": ""}\n')
    done = cli("check", "--plain")
    assert (done.status, "1 row cannot be evaluated" in done.err) == (0, True)
    (found,) = problems(cli, "--strict")
    assert (found["severity"], found["file"]) == ("error", "data/multiply.jsonl")


def test_check_github_annotations(
    cli: Cli, workspace: WorkspaceDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    entrypoint(workspace, "raise RuntimeError('50% of it\\n::error::forged, : too')\n")
    write_config(workspace, MINIMAL_EVAL + "\n[evaluation]\nn = 'four'\n")
    annotated = cli("check", "--annotations", "github", "--json").err.splitlines()
    commands = [line for line in annotated if line.startswith("::")]
    assert commands[0] == (
        "::error file=configs/eval/a.toml,line=11,title=osmosis check%3A config"
        '::evaluation.n: must be an integer, got "four"'
    )
    assert commands[1].startswith(
        "::error file=rollouts/multiply/main.py,line=1,title=osmosis check%3A import::"
    )
    assert "50%25 of it%0A::error::forged" in commands[1]
    assert len(commands) == 2


@pytest.mark.parametrize(
    "command", ["check --no-import", "check --no-import --annotations github", "eval run"]
)
def test_check_hostile_names(cli: Cli, workspace: WorkspaceDirectory, command: str) -> None:
    forged = r"\n::error::forged\r::error::too\u001b[31m"
    text = MINIMAL_EVAL.replace('"multiply"', f'"multiply{forged}"') + f'\n[evaluation]\n"n{forged}" = 1\n'
    path = write_config(workspace, text, name="odd\n::error::forged\x1b[31m.toml")
    done = cli(*command.split(), *([str(path)] if command == "eval run" else []))
    assert (done.status, "forged" in done.err) == (1, True)
    found = [line for line in (done.out + done.err).splitlines() if line.startswith("::")]
    assert all(line.startswith("::error file=") for line in found), found
    assert "\x1b" not in done.out + done.err


def test_check_paths(cli: Cli, workspace: WorkspaceDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    write_config(workspace, "nonsense = 1\n", name="b.toml")
    assert cli("check", "configs/eval/a.toml").status == 0
    assert cli("check", "data/multiply.jsonl", "configs/training").status == 0
    assert cli("check", "configs").status == 1
    monkeypatch.chdir(workspace.root.parent)
    assert cli("check", str(workspace.root / "configs" / "eval" / "a.toml")).status == 0


def test_check_benchmark_config(cli: Cli, workspace: WorkspaceDirectory) -> None:
    agent = '[[agents]]\nmodel = { type = "hosted", base_model = "b", lora_model_name = "walker" }\n'
    path = workspace.benchmark_configs_dir / "toy.toml"
    path.parent.mkdir()
    path.write_text(f'[experiment]\nbenchmark = "toy"\n{agent}')
    done = cli("check", "configs/benchmark", "--json")
    assert (done.status, done.resource["checked"]["configs"]) == (0, ["configs/benchmark/toy.toml"])
    path.write_text('[experiment]\nbench = "toy"\n' + agent)
    (missing, unknown) = problems(cli, "configs/benchmark/toy.toml")
    assert {missing["key"], unknown["key"]} == {"experiment.benchmark", "experiment.bench"}


def test_check_decide_file(cli: Cli, workspace: WorkspaceDirectory) -> None:
    write_config(
        workspace, '[min]\npass_rate = 0.8\n[decide]\nslices = ["difficulty"]\n', name="a.decide.toml"
    )
    done = cli("check", "--json")
    assert done.status == 0, done.err
    assert done.resource["checked"]["configs"] == [
        "configs/eval/a.decide.toml",
        "configs/eval/a.toml",
        "configs/training/a.toml",
    ]
    write_config(workspace, "[min]\npas_rate = 80\n[margin]\npass_rate = -1\n", name="a.decide.toml")
    assert len(problems(cli, "configs/eval/a.toml")) == 2
    write_config(workspace, "", name="aa.decide.toml")
    found = problems(cli, "configs/eval/")
    assert [(each["severity"], each["file"], each.get("line"), each.get("suggestion")) for each in found] == [
        ("error", "configs/eval/a.decide.toml", 2, "pass_rate"),
        ("error", "configs/eval/a.decide.toml", 4, None),
        ("warning", "configs/eval/aa.decide.toml", None, "a.decide.toml"),
    ]


def test_doctor_tracked_env_files(cli: Cli, tmp_path: Path) -> None:
    root = make_workspace(tmp_path).root
    for directory in (root, root / "rollouts" / "multiply"):
        (directory / ".env").write_text("OPENAI_API_KEY=sk-canary\n")
    git(root, "add", "--force", "--all")
    plain = cli("doctor", str(root), "--plain")
    assert (plain.status, "canary" in plain.out + plain.err) == (0, False)
    files = ".env rollouts/multiply/.env"
    assert f"Git tracks keys: {files}. Fix: git rm --cached -- {files}, then replace every key" in plain.out
    resource = cli("doctor", str(root), "--json").resource
    assert (resource["tracked_env_files"], resource["valid"]) == (files.split(), True)


def test_doctor_and_check_print_only_problems(
    cli: Cli, workspace: WorkspaceDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cli("check", "--plain") == (0, "No errors in 2 configs, 1 entrypoint, 1 dataset.\n", "")
    sandbox = SandboxCapability(Path("/usr/bin/bwrap"))
    monkeypatch.setattr("osmosis_ai.sandbox.isolation.check_sandbox", lambda *_: sandbox)
    assert cli("doctor", "--fix").status == 0
    assert cli("doctor", "--plain") == (0, f"{workspace.root} is complete.\n", "")
    (workspace.root / "AGENTS.md").unlink()
    assert cli("doctor", "--plain").out.splitlines() == [
        f"{workspace.root} has 1 problem.",
        "Guides for coding agents are missing: AGENTS.md. Fix: osmosis doctor --fix",
    ]


def test_doctor_missing_directories(cli: Cli, tmp_path: Path) -> None:
    outcome = cli("doctor", str(make_repository(tmp_path)))
    assert (outcome.status, outcome.out) == (1, "")
    assert "  - configs/eval/" in outcome.err and "osmosis doctor --fix" in outcome.err
