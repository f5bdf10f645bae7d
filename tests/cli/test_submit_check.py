"""What a submit knows beforehand: of a platform that can be asked, and of one that cannot."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from osmosis_ai.api.platform_url import DEFAULT_PLATFORM_URL
from tests.cli.eval_submits import CANARY, SUBMITTED, TEXT, commit, configure, make_ready, submit
from tests.cli.maze import Maze, sent
from tests.logins import save_login, use_platform
from tests.workspace.builders import git

ALL = ["config", "import", "secrets", "dataset", "model", "commit", "rollout", "limits"]
ONLY_THE_PLATFORM = ["model", "commit", "rollout", "limits"]


@pytest.fixture
def maze(maze: Maze, monkeypatch: pytest.MonkeyPatch, warm_children_without_torch: None) -> Maze:
    return make_ready(maze, monkeypatch)


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


def head(maze: Maze) -> str:
    return git(maze.workspace.root, "rev-parse", "HEAD")


def test_a_config_that_the_platform_would_take_can_be_submitted(maze: Maze) -> None:
    agrees(maze, head(maze))
    envelope = submit(maze, "--check", "--json").json
    assert envelope["message"] == "maze.toml can be submitted."
    assert (envelope["resource"]["checked"], envelope["resource"]["unchecked"]) == (ALL, [])
    assert "Not checked" not in submit(maze, "--check", "--plain").out


@pytest.mark.parametrize(
    "reply",
    [
        {"status_code": 404, "html": "<h1>404</h1>"},
        {"status_code": 404, "json": {"error": "Run not found", "code": "NOT_FOUND"}},
        {"status_code": 405, "json": {"error": "no POST here", "code": "METHOD_NOT_ALLOWED"}},
        {"status_code": 200, "json": {"ok": True}},
    ],
)
def test_of_a_platform_that_cannot_be_asked_it_says_what_was_checked_and_what_was_not(
    maze: Maze, reply: dict[str, Any]
) -> None:
    maze.post("/eval-runs/check").respond(**reply)
    envelope = submit(maze, "--check", "--json").json
    assert "can be submitted" not in envelope["message"]
    assert envelope["resource"]["unchecked"] == ONLY_THE_PLATFORM
    assert envelope["resource"]["checked"] == [check for check in ALL if check not in ONLY_THE_PLATFORM]
    for mode in ((), ("--plain",)):
        outcome = submit(maze, "--check", *mode)
        assert "Not checked: the model, the commit, the rollout's directory" in outcome.out + outcome.err


@pytest.mark.parametrize("way", [("--check",), ("--yes",)])
@pytest.mark.parametrize(
    "status, body, said, code",
    [
        (404, {"error": "no dataset 'x'", "code": "DATASET_NOT_FOUND"}, "no dataset 'x'", "NOT_FOUND"),
        (
            404,
            {"error": "Secret(s) not found: SEARCH_KEY", "code": "SECRETS_NOT_FOUND"},
            "osmosis secret set SEARCH_KEY",
            "NOT_FOUND",
        ),
        (
            400,
            {
                "error": "cannot be submitted:",
                "issues": [{"key": "experiment.branch", "message": "there is no branch 'mian'"}],
            },
            "experiment.branch: there is no branch 'mian'",
            "VALIDATION",
        ),
        (
            502,
            {"error": "could not fetch the code", "code": "REPOSITORY_NOT_FETCHED"},
            "fetch",
            "PLATFORM_ERROR",
        ),
    ],
)
def test_what_the_platform_would_refuse_is_neither_checked_nor_submitted(
    maze: Maze, way: tuple[str, ...], status: int, body: dict[str, Any], said: str, code: str
) -> None:
    maze.post("/eval-runs/check").respond(status, json={**body, "dry_run": True})
    error = submit(maze, *way, "--json").error
    assert (error["code"], said in error["message"]) == (code, True)
    assert not maze.post("/eval-runs").called


def test_what_a_config_names_and_is_not_there_is_looked_for_among_no_runs(maze: Maze) -> None:
    refusal = {"error": "no dataset 'x'", "code": "DATASET_NOT_FOUND", "dry_run": True}
    maze.post("/eval-runs/check").respond(404, json=refusal)
    runs = maze.get("/eval-runs").respond(json={"eval_runs": [], "total_count": 0, "has_more": False})
    assert "eval list" not in str(submit(maze, "--check", "--json").error)
    assert not runs.called


def test_a_repository_that_is_not_connected_is_no_missing_route(maze: Maze) -> None:
    body = {"error": "x", "code": "GIT_REPOSITORY_NOT_CONNECTED"}
    maze.post("/eval-runs/check").respond(404, json=body)
    assert "is not connected" in submit(maze, "--check", "--json").error["message"]


def test_a_built_in_model_that_is_none_is_warned_of(maze: Maze) -> None:
    configure(maze, TEXT.replace("openai/gpt-5-mini", "osmosis/tinny"))
    warned = submit(maze, "--json").error["details"]["warnings"]
    assert any("did you mean 'osmosis/tiny'?" in warning for warning in warned)


def test_values_of_secrets_travel_with_no_question(maze: Maze, tmp_path: Path) -> None:
    agrees(maze, head(maze))
    secrets = tmp_path / "secrets.env"
    secrets.write_text(f"SEARCH_KEY={CANARY}\n")
    assert submit(maze, "--yes", "--secrets-file", str(secrets), "--json").status == 0
    asked, submitted = sent(maze.post("/eval-runs/check")), sent(maze.post("/eval-runs"))
    assert CANARY not in str(asked) and set(asked["secrets"]["provided"]) == {"SEARCH_KEY"}
    assert submitted["secrets"]["provided"] == {"SEARCH_KEY": CANARY}
    secrets.write_text(f"SEARCH_KEY={CANARY * 5000}\n")
    error = submit(maze, "--check", "--secrets-file", str(secrets), "--json").error
    assert error["message"] == "The value of SEARCH_KEY in the secrets file must not be longer than 64 KiB."


# What is pushed


def warnings(maze: Maze) -> str:
    return "\n".join(submit(maze, "--json").error["details"].get("warnings", []))


def test_the_commit_checked_out_here_needs_no_push_when_it_is_what_would_run(maze: Maze) -> None:
    # The branch has no upstream: the platform reads the repository from somewhere else.
    agrees(maze, head(maze), local=True)
    assert warnings(maze) == ""
    notes = submit(maze, "--json").error["details"]["notes"]
    assert any(f"now {head(maze)[:8]}" in note for note in notes)


def test_commits_that_the_platform_would_not_run_are_counted_from_the_one_it_would(maze: Maze) -> None:
    old = head(maze)
    agrees(maze, old)
    commit(maze)
    assert "1 commit that is checked out here is not pushed to the branch it reads" in warnings(maze)
    commit(maze)
    assert "2 commits checked out here are not pushed" in warnings(maze)
    agrees(maze, old, local=True)
    assert "2 commits checked out here are not on the branch it reads" in warnings(maze)
    agrees(maze, head(maze))
    git(maze.workspace.root, "reset", "--quiet", "--hard", old)
    assert "which is newer than" in warnings(maze)
    agrees(maze, "4be1c0f" * 5 + "4be1c")
    assert "the platform would run 4be1c0f4, which is not in this clone" in warnings(maze)


def test_a_repository_that_is_its_own_origin_needs_no_push(maze: Maze) -> None:
    git(maze.workspace.root, "remote", "set-url", "origin", str(maze.workspace.root))
    assert "upstream" not in warnings(maze)


def test_the_hosted_service_gets_no_request_that_it_does_not_know(
    maze: Maze, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_login(DEFAULT_PLATFORM_URL)
    use_platform(monkeypatch, DEFAULT_PLATFORM_URL)
    api = f"{DEFAULT_PLATFORM_URL}/api/cli"
    names = ("OPENAI_API_KEY", "SEARCH_KEY")
    stored = [{"id": name, "name": name, "scope": "workspace"} for name in names]
    listed = maze.router.get(url__startswith=f"{api}/environment-secrets")
    listed.respond(json={"environment_secrets": stored, "next_offset": None})
    maze.router.post(f"{api}/eval-runs").respond(json=SUBMITTED)
    asked = maze.router.post(f"{api}/eval-runs/check").respond(404)
    envelope = submit(maze, "--yes", "--json").json
    assert envelope["resource"]["name"] == SUBMITTED["name"]
    assert not asked.called


def test_an_agent_that_is_served_elsewhere_needs_no_directory(maze: Maze) -> None:
    served = TEXT.replace('"multiply"', '"calculator"').replace('"main.py"', '"server://calculator"')
    configure(maze, served)
    agrees(maze, commit(maze))
    envelope = submit(maze, "--check", "--json").json
    assert envelope["resource"]["unchecked"] == ["import"]
    assert "is served elsewhere" in " ".join(envelope["resource"]["warnings"])
    (maze.workspace.root / "new.txt").write_text("not the agent's")
    told = submit(maze, "--check", "--json").json["resource"]
    assert "Uncommitted changes" not in " ".join(told["warnings"])
    assert "the repository's code is not run" in " ".join(told["notes"])
    asked = sent(maze.post("/eval-runs/check"))
    assert asked["experiment_config"]["entrypoint"] == "server://calculator"
    for nothing in ("server://", "server:// x", "server://<name>"):
        configure(maze, served.replace("server://calculator", nothing))
        refused = submit(maze, "--check")
        assert refused.status == 1 and "must name a served agent" in refused.err
