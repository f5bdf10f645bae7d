"""`osmosis eval submit`: requests, confirmation, refusals and secrets."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.cli.eval_submits import CONFIG, TEXT, commit, store_secrets, write_entrypoint
from tests.cli.maze import Maze, sent
from tests.cli.outcome import Outcome
from tests.logins import files_holding, save_login, use_platform

SUBMITTED: dict[str, Any] = {
    "id": "er_8",
    "name": "amber-otter-42",
    "status": "pending",
    "created_at": "2026-10-02T07:00:00Z",
}
CANARY = "sk-canary-51fe09c2"


@pytest.fixture
def maze(maze: Maze, warm_children_without_torch: None) -> Maze:
    """A committed config, and a platform with its secrets and dataset that accepts the run."""
    # The GitHub CLI of this machine is not used.
    maze.patch.setenv("PATH", os.pathsep.join(("/usr/local/bin", "/usr/bin", "/bin")))
    configure(maze, TEXT)
    commit(maze)
    store_secrets(maze, ("OPENAI_API_KEY", "workspace"), ("SEARCH_KEY", "workspace"), ("SEARCH_KEY", "user"))
    maze.post("/eval-runs").respond(json=SUBMITTED)
    # The hosted service has no such route.
    maze.post("/eval-runs/check").respond(404, html="<h1>404</h1>")
    maze.get("/datasets/maze-walks").respond(
        json={"id": "ds_31", "file_name": "maze-walks", "status": "uploaded"}
    )
    return maze


@pytest.fixture
def secrets(tmp_path: Path) -> Path:
    """A secrets file with a value for one of the two names."""
    path = tmp_path / "secrets.env"
    path.write_text(f"SEARCH_KEY={CANARY}\n")
    return path


def configure(maze: Maze, text: str) -> None:
    (maze.workspace.root / CONFIG).write_text(text)


def pin(maze: Maze, sha: str) -> None:
    configure(maze, TEXT.replace("[evaluation]", f'commit_sha = "{sha}"\n\n[evaluation]', 1))


def submit(maze: Maze, *options: str) -> Outcome:
    return maze.osmosis("eval", "submit", CONFIG, *options)


def submit_json(maze: Maze, *options: str) -> Outcome:
    return submit(maze, "--yes", "--json", *options)


def test_request(maze: Maze) -> None:
    maze.patch.setenv("OPENAI_API_KEY", CANARY)  # exported variables are not sent
    outcome = submit_json(maze)
    assert outcome.status == 0, outcome.err
    assert sent(maze.post("/eval-runs")) == {
        "experiment_config": {
            "rollout": "multiply",
            "entrypoint": "main.py",
            "model_path": "openai/gpt-5-mini",
            "dataset": "maze-walks",
        },
        "evaluation_config": {"limit": 10},
        "env_config": {"LOG_LEVEL": "INFO"},
        "secrets": {"required": ["OPENAI_API_KEY", "SEARCH_KEY"]},
    }


def test_request_without_optional_sections(maze: Maze) -> None:
    configure(maze, TEXT.partition("[evaluation]")[0] + "[secrets]\nrequired = []\n")
    assert submit_json(maze).status == 0
    assert set(sent(maze.post("/eval-runs"))) == {"experiment_config"}
    assert not maze.get("/environment-secrets").called


def test_asks_with_summary_and_warnings(maze: Maze) -> None:
    (maze.workspace.root / "new.txt").write_text("not committed")
    error = submit(maze, "--json").error
    assert (error["code"], maze.post("/eval-runs").called) == ("INTERACTIVE_REQUIRED", False)
    assert error["details"]["summary"]["secret.SEARCH_KEY"] == "Personal (overrides workspace)"
    assert "Uncommitted changes" in "\n".join(error["details"]["warnings"])


def test_enter_submits(maze: Maze) -> None:
    maze.patch.setattr("osmosis_ai.cli.output.formats.is_terminal", lambda _: True)
    maze.patch.setattr("typer.getchar", lambda: "\r")
    assert submit(maze).status == 0 and maze.post("/eval-runs").called


def test_platform_errors(maze: Maze) -> None:
    route = maze.post("/eval-runs")
    route.side_effect = httpx.ReadTimeout("slow")
    outcome = submit(maze, "--yes", "--plain")
    assert (outcome.status, route.call_count) == (1, 1)
    assert "the request may have succeeded" in outcome.err

    def interrupt(_request: httpx.Request) -> httpx.Response:
        raise KeyboardInterrupt

    route.side_effect = interrupt
    interrupted = submit(maze, "--yes", "--watch")
    assert interrupted.status == 130
    assert "The evaluation run may have been submitted: osmosis eval list shows it." in interrupted.err

    refusal = {"error": "there is no dataset 'maze-walks'", "dry_run": True}
    maze.post("/eval-runs/check").respond(404, json=refusal)
    error = submit_json(maze).error
    assert error["message"] == "there is no dataset 'maze-walks'"
    assert "osmosis eval list" not in (error.get("hint") or "")


def test_check(maze: Maze, secrets: Path) -> None:
    outcome = submit(maze, "--check", "--secrets-file", str(secrets), "--json")
    assert (outcome.status, outcome.json["operation"]) == (0, "eval.check")
    payload = outcome.resource["payload"]
    required = ["OPENAI_API_KEY", "SEARCH_KEY"]
    assert payload["secrets"] == {"required": required, "provided": ["SEARCH_KEY"]}
    assert payload["evaluation_config"] == {"limit": 10}
    assert outcome.resource["secrets"] == {"OPENAI_API_KEY": "workspace", "SEARCH_KEY": "run"}
    assert outcome.resource["dataset"]["status"] == "uploaded"
    assert CANARY not in outcome.out + outcome.err
    assert submit(maze, "--check", "--plain").status == 0
    assert not maze.post("/eval-runs").called


@pytest.mark.parametrize(
    "text, place, said",
    [
        ("def broken(:\n", "main.py, line 1", "SyntaxError"),
        ("import os\nos._exit(5)\n", "main.py", "it ended with exit status 5"),
        ("agent_loop = 3\n", "main.py", "is of type int, no RolloutAgentLoop"),
    ],
)
def test_invalid_entrypoint(maze: Maze, text: str, place: str, said: str) -> None:
    write_entrypoint(maze, text)
    error = submit_json(maze).error
    assert error["code"] == "VALIDATION"
    prefix = "`osmosis eval submit` preflight failed for `rollouts/multiply/main.py`."
    assert error["message"].startswith(prefix)
    assert f"rollouts/multiply/{place}" in error["message"] and said in error["message"]
    assert not maze.router.calls


def test_entrypoint_import_environment(maze: Maze) -> None:
    (maze.workspace.rollouts_dir / "multiply" / "tools.py").write_text("from . import more\nX = 1\n")
    (maze.workspace.rollouts_dir / "multiply" / "more.py").write_text("")
    write_entrypoint(
        maze,
        "import os\nimport more\nfrom .tools import X\n"
        "os.environ['SEARCH_KEY'], os.environ['LOG_LEVEL']\nassert 'OSMOSIS_TOKEN' not in os.environ\n"
        "assert __name__ != '__main__'\n",
    )
    assert submit_json(maze).status == 0


def test_missing_package_is_a_warning(maze: Maze) -> None:
    write_entrypoint(maze, "import no_such_package_at_all\n")
    outcome = submit_json(maze)
    assert outcome.status == 0
    assert "no_such_package_at_all" in json.loads(outcome.err.splitlines()[0])["warning"]["message"]
    project = maze.workspace.rollouts_dir / "multiply" / "pyproject.toml"
    project.write_text('[project]\nname = "multiply"\ndependencies = ["no-such-package-at-all>=9"]\n')
    write_entrypoint(maze, "raise RuntimeError('is not even imported')\n")
    assert "`no-such-package-at-all` is not installed" in submit(maze, "--yes", "--plain").err


def test_import_timeout(maze: Maze, monkeypatch: pytest.MonkeyPatch) -> None:
    from osmosis_ai.services import rollout_preflight

    monkeypatch.setitem(rollout_preflight.import_entrypoint.__kwdefaults__, "timeout_s", 0.5)
    write_entrypoint(maze, "import threading\nthreading.Event().wait()\n")
    outcome = submit(maze, "--yes", "--plain")
    assert (outcome.status, "still importing after 0.5 s" in outcome.err) == (0, True)
    error = submit(maze, "--check", "--json").error
    assert "`rollouts/multiply/main.py` was still importing after 0.5 s." in error["message"]


def install_gh(maze: Maze, script: str) -> Path:
    """Put a GitHub CLI on PATH that writes its arguments to a file."""
    directory = maze.workspace.root.parent / "bin"
    directory.mkdir(exist_ok=True)
    arguments = directory / "arguments"
    (directory / "gh").write_text(f'#!/bin/sh\necho "$@" > {arguments}\n{script}\n')
    (directory / "gh").chmod(0o755)
    maze.patch.setenv("PATH", f"{directory}{os.pathsep}{os.environ['PATH']}")
    return arguments


def test_commit_must_be_pushed(maze: Maze) -> None:
    install_gh(maze, "echo 'gh: No commit found for SHA (HTTP 422)' >&2; exit 1")
    pin(maze, commit(maze))
    assert "but not pushed to fern/maze" in submit_json(maze).error["message"]
    pin(maze, "4be1c0f")
    assert "neither in this clone nor in fern/maze" in submit_json(maze).error["message"]
    assert not maze.post("/eval-runs").called

    arguments = install_gh(maze, "exit 0")
    outcome = submit_json(maze)
    assert (outcome.status, "4be1c0f" in outcome.err) == (0, False)
    assert arguments.read_text() == "api --silent repos/fern/maze/commits/4be1c0f\n"
    assert sent(maze.post("/eval-runs"))["experiment_config"]["commit_sha"] == "4be1c0f"
    assert outcome.resource["config"]["commit_sha"] == "4be1c0f"


def test_missing_secrets(maze: Maze) -> None:
    maze.patch.setenv("SEARCH_KEY", CANARY)
    store_secrets(maze, ("OTHER", "workspace"), ("OPENAI_API_KEY", "team"))
    error = submit(maze, "--json").error
    assert error["code"] == "INTERACTIVE_REQUIRED"
    assert error["details"]["missing"] == ["OPENAI_API_KEY", "SEARCH_KEY"]
    assert error["details"]["flags"] == ["--secrets-file"]
    assert "\n  osmosis secret set OPENAI_API_KEY\n" in error["message"]
    assert error["message"].endswith("\n  osmosis secret set SEARCH_KEY --env SEARCH_KEY")
    assert CANARY not in json.dumps(error)
    assert not maze.post("/eval-runs").called


def test_secrets_file(maze: Maze, secrets: Path, tmp_path: Path) -> None:
    store_secrets(maze, ("OPENAI_API_KEY", "workspace"))
    agrees(maze, commit(maze))
    secrets.write_text(f"export SEARCH_KEY='{CANARY}'\nUNASKED={CANARY}2\n")
    required = ["OPENAI_API_KEY", "SEARCH_KEY"]
    for mode in (["--json"], ["--plain"], []):
        outcome = submit(maze, "--yes", "--secrets-file", str(secrets), *mode)
        assert outcome.status == 0, outcome.err
        assert CANARY not in outcome.out + outcome.err
        assert "UNASKED" in outcome.err
        body = sent(maze.post("/eval-runs"))
        assert body["secrets"] == {"required": required, "provided": {"SEARCH_KEY": CANARY}}
        # The check receives names without values.
        check = sent(maze.post("/eval-runs/check"))
        assert CANARY not in str(check) and set(check["secrets"]["provided"]) == {"SEARCH_KEY"}
    assert files_holding(CANARY, tmp_path) == ["secrets.env"]


def test_echoed_secret_is_redacted(maze: Maze, secrets: Path) -> None:
    secrets.write_text(f"OPENAI_API_KEY={CANARY}\nSEARCH_KEY={CANARY}-longer\n")
    maze.post("/eval-runs").respond(400, json={"error": f"bad secret {CANARY}-longer", "value": CANARY})
    for mode in ("--json", "--plain"):
        outcome = submit(maze, "--yes", "--secrets-file", str(secrets), mode)
        assert (outcome.status, CANARY in outcome.err, "-longer" in outcome.err) == (1, False, False)
        assert "bad secret [REDACTED]" in outcome.err


def test_secret_list_unavailable(maze: Maze, secrets: Path) -> None:
    maze.get("/environment-secrets").respond(500, json={"error": "broken"})
    outcome = submit(maze, "--yes", "--secrets-file", str(secrets), "--plain")
    assert (outcome.status, "the stored secrets could not be listed (broken)" in outcome.err) == (0, True)
    # Values for this run are sent all the same.
    assert sent(maze.post("/eval-runs"))["secrets"]["provided"] == {"SEARCH_KEY": CANARY}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (f"GOOD=1\n{CANARY}\n", "Line 2"),
        (
            f"SEARCH_KEY={CANARY * 5000}\n",
            "The value of SEARCH_KEY in the secrets file must not be longer than 64 KiB.",
        ),
        (None, "Secrets file not found: "),
    ],
    ids=["line", "size", "missing"],
)
def test_invalid_secrets_file(maze: Maze, secrets: Path, content: str | None, message: str) -> None:
    secrets.unlink() if content is None else secrets.write_text(content)
    error = submit_json(maze, "--secrets-file", str(secrets)).error
    assert error["code"] == "VALIDATION"
    assert message in error["message"] and CANARY not in json.dumps(error)


HOSTED = "https://platform.osmosis.ai"


def agrees(maze: Maze, sha: str, *, local: bool = False) -> None:
    """Let the platform be one that can be asked, and agree."""
    verdict = {
        "dry_run": True,
        "commit_sha": sha,
        "repository": {"identity": "fern/maze", "local": local},
        "dataset": {"id": "ds_31", "name": "maze-walks"},
        "sampled_rows": 10,
        "total_dataset_rows": 200,
    }
    maze.post("/eval-runs/check").respond(json=verdict)


@pytest.mark.parametrize(
    "reply", [{"status_code": 404, "html": "<h1>404</h1>"}, {"status_code": 200, "json": {"ok": True}}]
)
def test_check_without_platform_support(maze: Maze, reply: dict[str, Any]) -> None:
    maze.post("/eval-runs/check").respond(**reply)
    outcome = submit(maze, "--check", "--json")
    assert "can be submitted" not in outcome.json["message"]
    assert outcome.resource["unchecked"] == ["model", "commit", "rollout", "limits"]
    assert outcome.resource["checked"] == ["config", "import", "secrets", "dataset"]


@pytest.mark.parametrize("option", ["--check", "--yes"])
@pytest.mark.parametrize(
    "status, refusal, code",
    [
        (404, {"error": "no dataset 'x'", "code": "DATASET_NOT_FOUND"}, "NOT_FOUND"),
        (502, {"error": "could not fetch", "code": "REPOSITORY_NOT_FETCHED"}, "PLATFORM_ERROR"),
    ],
)
def test_platform_check_refuses(
    maze: Maze, option: str, status: int, refusal: dict[str, Any], code: str
) -> None:
    maze.post("/eval-runs/check").respond(status, json={**refusal, "dry_run": True})
    error = submit(maze, option, "--json").error
    assert (error["code"], refusal["error"] in error["message"]) == (code, True)
    assert not maze.post("/eval-runs").called


def test_local_commit_needs_no_push(maze: Maze) -> None:
    # The branch has no upstream: the platform reads the repository from somewhere else.
    head = commit(maze)
    agrees(maze, head, local=True)
    details = submit(maze, "--json").error["details"]
    assert not details.get("warnings")
    assert any(f"now {head[:8]}" in note for note in details["notes"])


def test_hosted_service_is_not_asked_to_check(maze: Maze, monkeypatch: pytest.MonkeyPatch) -> None:
    save_login(HOSTED)
    use_platform(monkeypatch, HOSTED)
    api = f"{HOSTED}/api/cli"
    names = ("OPENAI_API_KEY", "SEARCH_KEY")
    stored = [{"id": name, "name": name, "scope": "workspace"} for name in names]
    listed = maze.router.get(url__startswith=f"{api}/environment-secrets")
    listed.respond(json={"environment_secrets": stored, "next_offset": None})
    maze.router.post(f"{api}/eval-runs").respond(json=SUBMITTED)
    asked = maze.router.post(f"{api}/eval-runs/check").respond(404)
    envelope = submit_json(maze).json
    assert envelope["resource"]["name"] == SUBMITTED["name"]
    assert not asked.called


def test_remote_agent(maze: Maze) -> None:
    served = TEXT.replace('"multiply"', '"calculator"').replace('"main.py"', '"server://calculator"')
    configure(maze, served)
    agrees(maze, commit(maze))
    envelope = submit(maze, "--check", "--json").json
    assert envelope["resource"]["unchecked"] == ["import"]
    assert "is a remote agent" in " ".join(envelope["resource"]["warnings"])
    asked = sent(maze.post("/eval-runs/check"))
    assert asked["experiment_config"]["entrypoint"] == "server://calculator"
    for nothing in ("server://", "server:// x", "server://<name>"):
        configure(maze, served.replace("server://calculator", nothing))
        refused = submit(maze, "--check")
        assert refused.status == 1 and "must name a served agent" in refused.err
