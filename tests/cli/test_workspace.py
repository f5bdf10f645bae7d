"""What a person and a script see of workspaces."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import respx

from osmosis_ai.cli.main import main
from tests.cli.conftest import Cli
from tests.logins import FERN, IDENTITY, VERIFIED, make_checkout, save_login, use_platform
from tests.workspace.builders import (
    MINIMAL_EVAL,
    MINIMAL_TRAINING,
    git,
    make_repository,
    make_workspace,
    write_config,
)

LAB = {"id": "ws_1", "name": "fern-lab", "role": "admin", "connected_repo": {"repo_full_name": IDENTITY}}
MOSS = {"id": "ws_2", "name": "moss", "connected_repo": None}


@pytest.fixture
def platform(monkeypatch: pytest.MonkeyPatch) -> Iterator[respx.MockRouter]:
    use_platform(monkeypatch)
    save_login()
    with respx.mock(base_url=FERN, assert_all_called=False) as router:
        router.get("/api/cli/workspaces").respond(json={"workspaces": [LAB, MOSS]})
        router.get("/api/cli/verify").respond(json=VERIFIED)
        yield router


@pytest.fixture
def root(platform: respx.MockRouter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout of the workspace fern-lab, and the current directory."""
    found = make_checkout(tmp_path / "with space").root
    monkeypatch.chdir(found)
    return found


def test_switching_tells_where_to_go(
    cli: Cli, root: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    outcome = cli("workspace", "switch", "fern-lab", "--json")
    assert (outcome.status, json.loads(outcome.out)["status"]) == (0, "noop")
    monkeypatch.chdir(tmp_path)
    envelope = json.loads(cli("workspace", "switch", "fern-lab", "--json").out)
    assert (envelope["operation"], envelope["status"]) == ("workspace.switch", "success")
    assert envelope["resource"]["workspace_directory"] == str(root)


ROWS = "".join(json.dumps({"user_prompt": f"{n} + 1?", "ground_truth": str(n + 1)}) + "\n" for n in range(5))


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A workspace without an origin, for somebody who is not logged in anywhere."""
    made = make_workspace(tmp_path / "agents")
    write_config(made, MINIMAL_EVAL)
    write_config(made, MINIMAL_TRAINING, kind="training")
    (made.data_dir / "multiply.jsonl").write_text(ROWS)
    monkeypatch.chdir(made.root)
    monkeypatch.setenv("OSMOSIS_CONFIG_DIR", str(tmp_path / "nobody"))
    return made


def entrypoint(workspace: Any, text: str) -> None:
    (workspace.rollouts_dir / "multiply" / "main.py").write_text(text)


def problems(cli: Cli, *arguments: str) -> list[dict[str, Any]]:
    """Run a check that fails, and return what it found."""
    done = cli("check", "--json", *arguments)
    assert (done.status, done.out) == (1, "")
    error = json.loads(done.err.splitlines()[-1])["error"]
    assert error["code"] == "VALIDATION"
    found: list[dict[str, Any]] = error["details"]["problems"]
    return found


@pytest.mark.usefixtures("warm_children_without_torch")
def test_everything_that_is_wrong_is_in_one_report_with_its_lines(cli: Cli, workspace: Any) -> None:
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


@pytest.mark.usefixtures("warm_children_without_torch")
def test_code_that_is_not_trusted_is_not_imported(cli: Cli, workspace: Any, tmp_path: Path) -> None:
    touched = tmp_path / "touched"
    entrypoint(workspace, f"open({str(touched)!r}, 'w')\nraise RuntimeError\n")
    done = cli("check", "--no-import", "--json")
    assert (done.status, touched.exists()) == (0, False)
    assert json.loads(done.out)["resource"]["unchecked"] == [
        "rollouts/multiply/main.py was not imported (--no-import)."
    ]
    assert (
        "Not checked: rollouts/multiply/main.py was not imported"
        in cli("check", "--no-import", "--plain").out
    )


@pytest.mark.usefixtures("warm_children_without_torch")
def test_an_import_that_does_not_end_in_time_is_an_error(cli: Cli, workspace: Any) -> None:
    entrypoint(workspace, "import threading\nthreading.Event().wait()\n")
    (found,) = problems(cli, "--import-timeout", "1")
    assert found["message"] == "`rollouts/multiply/main.py` was still importing after 1 s."


@pytest.mark.usefixtures("warm_children_without_torch")
def test_what_only_a_platform_can_tell_is_said_to_be_unchecked(cli: Cli, workspace: Any) -> None:
    entrypoint(workspace, "import no_such_package_at_all\n")
    write_config(workspace, MINIMAL_EVAL.replace('dataset = "multiply"', 'dataset = "multiplly"'))
    (workspace.root / "configs" / "training" / "a.toml").unlink()
    pinned = MINIMAL_EVAL.replace("\n\n[secrets]", '\nbranch = "next"\n\n[secrets]')
    write_config(workspace, pinned, name="pinned.toml")
    done = cli("check", "--json")
    assert done.status == 0, done.err
    missing, dataset, branch = json.loads(done.out)["resource"]["unchecked"]
    assert "no_such_package_at_all" in missing
    assert "data/ has no dataset 'multiplly'" in dataset and "did you mean 'multiply'?" in dataset
    assert "configs/eval/pinned.toml takes rollouts/multiply/main.py from next" in branch


@pytest.mark.usefixtures("warm_children_without_torch")
def test_rows_that_cannot_be_evaluated_fail_a_strict_check(cli: Cli, workspace: Any) -> None:
    (workspace.data_dir / "multiply.jsonl").write_text(ROWS + '{"user_prompt": "?", "ground_truth": ""}\n')
    done = cli("check", "--plain")
    assert (done.status, "1 row cannot be evaluated" in done.err) == (0, True)
    (found,) = problems(cli, "--strict")
    assert (found["severity"], found["file"]) == ("error", "data/multiply.jsonl")


@pytest.mark.usefixtures("warm_children_without_torch")
def test_problems_are_annotated_where_github_shows_them(
    cli: Cli, workspace: Any, monkeypatch: pytest.MonkeyPatch
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


@pytest.mark.usefixtures("warm_children_without_torch")
@pytest.mark.parametrize(
    "command", ["check --no-import", "check --no-import --annotations github", "eval run"]
)
def test_no_name_in_a_repository_can_be_a_command_to_ci(cli: Cli, workspace: Any, command: str) -> None:
    forged = r"\n::error::forged\r::error::too\u001b[31m"
    text = MINIMAL_EVAL.replace('"multiply"', f'"multiply{forged}"') + f'\n[evaluation]\n"n{forged}" = 1\n'
    path = write_config(workspace, text, name="odd\n::error::forged\x1b[31m.toml")
    done = cli(*command.split(), *([str(path)] if command == "eval run" else []))
    assert (done.status, "forged" in done.err) == (1, True)
    found = [line for line in (done.out + done.err).splitlines() if line.startswith("::")]
    assert all(line.startswith("::error file=") for line in found), found
    assert "\x1b" not in done.out + done.err


@pytest.mark.usefixtures("warm_children_without_torch")
def test_only_what_is_named_is_checked(cli: Cli, workspace: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    write_config(workspace, "nonsense = 1\n", name="b.toml")
    assert cli("check", "configs/eval/a.toml").status == 0
    assert cli("check", "data/multiply.jsonl", "configs/training").status == 0
    assert cli("check", "configs").status == 1
    monkeypatch.chdir(workspace.root.parent)
    assert cli("check", str(workspace.root / "configs" / "eval" / "a.toml")).status == 0


@pytest.mark.usefixtures("warm_children_without_torch")
def test_a_benchmark_config_is_checked_with_the_others(cli: Cli, workspace: Any) -> None:
    agent = '[[agents]]\nmodel = { type = "hosted", base_model = "b", lora_model_name = "walker" }\n'
    path = workspace.benchmark_configs_dir / "toy.toml"
    path.parent.mkdir()
    path.write_text(f'[experiment]\nbenchmark = "toy"\n{agent}')
    done = cli("check", "configs/benchmark", "--json")
    assert (done.status, json.loads(done.out)["resource"]["checked"]["configs"]) == (
        0,
        ["configs/benchmark/toy.toml"],
    )
    path.write_text('[experiment]\nbench = "toy"\n' + agent)
    (missing, unknown) = problems(cli, "configs/benchmark/toy.toml")
    assert {missing["key"], unknown["key"]} == {"experiment.benchmark", "experiment.bench"}


@pytest.mark.usefixtures("warm_children_without_torch")
def test_what_is_decided_about_a_config_is_checked_with_it(cli: Cli, workspace: Any) -> None:
    write_config(
        workspace, '[min]\npass_rate = 0.8\n[decide]\nslices = ["difficulty"]\n', name="a.decide.toml"
    )
    done = cli("check", "--json")
    assert done.status == 0, done.err
    assert json.loads(done.out)["resource"]["checked"]["configs"] == [
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


@pytest.mark.usefixtures("warm_children_without_torch")
@pytest.mark.parametrize(
    ("table", "key", "message", "meant"),
    [
        ("[advanced.execution]\ncpuz = 2\n", "cpuz", "Unrecognized key", "cpus"),
        ("[advanced.execution]\nservers = 0\n", "servers", "must be at least 1, got 0", None),
    ],
)
@pytest.mark.parametrize("kind", ["eval", "training"])
def test_a_mistake_in_what_a_run_asks_of_its_machine_fails_the_check_of_either_kind(
    cli: Cli, workspace: Any, kind: str, table: str, key: str, message: str, meant: str | None
) -> None:
    config = write_config(
        workspace, (MINIMAL_EVAL if kind == "eval" else MINIMAL_TRAINING) + "\n" + table, kind=kind
    )
    (found,) = problems(cli, "--no-import", str(config))
    place = table.partition("]")[0].removeprefix("[")
    assert (found["severity"], found["key"]) == ("error", f"{place}.{key}")
    assert (found["message"], found.get("suggestion")) == (message, meant)
    assert found["line"]


def test_an_env_file_in_the_repository_is_named_with_the_command_that_takes_it_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = make_workspace(tmp_path).root
    for directory in (root, root / "rollouts" / "multiply"):
        (directory / ".env").write_text("OPENAI_API_KEY=sk-canary\n")
    git(root, "add", "--force", "--all")
    assert main(["doctor", str(root), "--plain"]) == 0
    captured = capsys.readouterr()
    shown = captured.out.splitlines()
    assert ".env\tin the repository, keys and all" in shown
    assert (
        "Take .env rollouts/multiply/.env out of the repository: git rm --cached -- .env rollouts/multiply/.env"
        in shown
    )
    assert "canary" not in captured.out + captured.err
    assert main(["doctor", str(root), "--json"]) == 0
    resource = json.loads(capsys.readouterr().out)["resource"]
    assert resource["tracked_env_files"] == [".env", "rollouts/multiply/.env"]
    assert resource["valid"] is True


def test_missing_directories_exit_with_one_and_the_way_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = make_repository(tmp_path)
    assert main(["doctor", str(root)]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "  - configs/eval/" in captured.err
    assert "osmosis doctor --fix" in captured.err
