"""What bad input gets on a platform: one clear sentence and the right exit status, through real processes.

Every command is a process of its own, in a checkout whose origin is a path on this machine while the platform calls
the repository ``fern/agents``.
"""

from __future__ import annotations

import http.client
import json
import re
import socket
import sqlite3
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from sqlalchemy import update

from osmosis_ai.platform.accounts import AccountStore
from osmosis_ai.platform.clock import SystemClock
from osmosis_ai.platform.db.tables import DbDataset
from osmosis_ai.services.demo import prepare_scratch
from tests.e2e.platform_checkout import Outcome, World, run, running, said
from tests.e2e.platform_process import PROGRAM
from tests.full_disk import NO_CACHED_CODE, limit_files

pytestmark = pytest.mark.e2e

CONFIG = "configs/eval/multiply.toml"
CANARY = "sk-canary-4711"
ROWS = '{"user_prompt": "a", "ground_truth": "1"}\n' * 4


@pytest.fixture(scope="module")
def token(world: World) -> str:
    """A token of the administrator's."""
    made: str = world.json(
        "platform", "token", "create", "--name", "tests", "--user", "admin@localhost"
    ).resource["token"]
    return made


# The repository


def test_a_repository_called_otherwise_on_the_platform_is_found_by_its_origin(
    world: World, token: str
) -> None:
    listed = world.json("rollout", "list")
    assert {item["repo_full_name"] for item in json.loads(listed.out)["items"]} == {"fern/agents"}
    sent = json.loads(listed.out)["git"]["identity"]
    assert sent.startswith("local/origin-")
    for identity in (sent, "fern/agents", "Fern/Agents"):
        status, body = world.request("GET", "/api/cli/verify", token=token, **{"X-Osmosis-Git": identity})
        assert (status, body["workspace"]["name"]) == (200, "default")


def test_without_an_origin_it_is_said_how_to_add_one(world: World, tmp_path: Path) -> None:
    bare = tmp_path / "agents"
    world.git("clone", "-q", str(world.scratch.origin), str(bare))
    world.git("remote", "remove", "origin", cwd=bare)
    outcome = world.osmosis("eval", "submit", CONFIG, "--yes", "--plain", cwd=bare)
    assert (outcome.status, outcome.out) == (1, "")
    assert outcome.err == (
        f"Error: {bare} has no Git remote `origin`, by which a platform knows the repository.\n"
        f"hint: git -C {bare} remote add origin URL\n"
    )


def test_an_origin_that_is_not_connected_is_told_with_the_command_that_connects_it(
    world: World, tmp_path: Path
) -> None:
    fork = tmp_path / "fork.git"
    world.git("clone", "-q", "--bare", str(world.scratch.origin), str(fork))
    world.git("clone", "-q", str(fork), str(tmp_path / "agents"))
    error = world.json("eval", "submit", CONFIG, "--yes", cwd=tmp_path / "agents").error
    assert error["code"] == "NOT_FOUND"
    assert "is not connected to a workspace" in error["message"]
    assert f"osmosis platform connect {fork}" in error["hint"]


def test_a_repository_that_does_not_clone_is_told_in_gits_words(world: World, tmp_path: Path) -> None:
    gone = tmp_path / "gone.git"
    world.git("clone", "-q", "--bare", str(world.scratch.origin), str(gone))
    world.git("clone", "-q", str(gone), str(tmp_path / "agents"))
    assert world.json("platform", "connect", str(gone)).status == 0
    gone.rename(tmp_path / "moved.git")
    error = world.json("eval", "submit", CONFIG, "--yes", cwd=tmp_path / "agents").error
    assert f"cannot be fetched from {gone}" in error["message"]
    assert "does not appear to be a git repository" in error["message"]


# Who asks


def test_nobody_is_told_to_log_in(world: World, tmp_path: Path) -> None:
    outcome = world.json("eval", "info", "platform:any", OSMOSIS_CONFIG_DIR=str(tmp_path))
    assert outcome.error["code"] == "AUTH_REQUIRED"
    assert "osmosis auth login" in said(outcome) and world.url in said(outcome)


def test_a_token_that_is_wrong_expired_or_revoked_is_told_apart(world: World) -> None:
    # There may be several users already.
    revoked = world.json("platform", "token", "create", "--user", "admin@localhost").resource
    assert world.osmosis("platform", "token", "revoke", revoked["id"], "--yes").status == 0
    with world.database() as db:
        accounts = AccountStore(db, SystemClock())
        _, expired = accounts.create_token(accounts.users()[0].id, ttl=timedelta(seconds=-1))
    for token, word in (
        (revoked["token"], "revoked"),
        (expired, "expired"),
        ("osm_nobody_made_this_one", "not valid"),
    ):
        for command in (("eval", "list"), ("whoami",)):
            outcome = world.json(*command, **world.as_holder_of(token))
            assert outcome.error["code"] == "AUTH_REQUIRED"
            assert word in outcome.error["message"], outcome.error
            assert token not in outcome.err


def test_a_member_of_another_workspace_sees_nothing_of_this_one(world: World) -> None:
    run = world.submit("theirs").resource
    dataset = world.json("dataset", "info", "multiply").resource
    assert world.osmosis("platform", "workspace", "add", "moss").status == 0
    assert world.osmosis("platform", "user", "add", "ivo@moss.example", "-w", "moss").status == 0
    made = world.json("platform", "token", "create", "--user", "ivo@moss.example").resource["token"]
    ivo = world.as_holder_of(made)
    for command in (
        ("dataset", "list"),
        ("dataset", "info", "multiply"),
        ("dataset", "download", "multiply"),
        ("eval", "list"),
        ("eval", "info", run["name"]),
        ("eval", "logs", run["name"]),
        ("eval", "stop", run["name"], "--yes"),
        ("secret", "list"),
        ("rollout", "list"),
        ("eval", "submit", CONFIG, "--yes"),
    ):
        outcome = world.json(*command, **ivo)
        assert "not a member of the workspace" in outcome.error["message"], command
    # Nor by id, from a repository of his own.
    moss = world.scratch.root / "moss.git"
    world.git("clone", "-q", "--bare", str(world.scratch.origin), str(moss))
    world.git("clone", "-q", str(moss), str(world.scratch.root / "moss"))
    assert world.osmosis("platform", "connect", str(moss), "-w", "moss").status == 0
    for command in (
        ("dataset", "info", dataset["id"]),
        ("dataset", "download", dataset["id"]),
        ("eval", "info", run["id"]),
        ("eval", "logs", run["id"]),
        ("eval", "download", run["id"], "--yes"),
        ("eval", "stop", run["id"], "--yes"),
    ):
        error = world.json(*command, cwd=world.scratch.root / "moss", **ivo).error
        assert error["code"] == "NOT_FOUND", (command, error)
    everything = world.json("workspace", "list", cwd=world.scratch.root / "moss", **ivo)
    assert [item["name"] for item in json.loads(everything.out)["items"]] == ["moss"]


# The platform


class _Unwell(BaseHTTPRequestHandler):
    """A platform that answers every request alike."""

    answer: tuple[int, str, bytes] = (200, "text/html", b"")

    def do_GET(self) -> None:
        status, kind, body = self.answer
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_GET

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@contextmanager
def unwell(status: int, kind: str, body: bytes) -> Iterator[str]:
    handler = type("Unwell", (_Unwell,), {"answer": (status, kind, body)})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize(
    ("status", "kind", "body", "code", "words"),
    [
        (200, "text/html", b"<html>sign in</html>", "PLATFORM_ERROR", "Invalid JSON"),
        (500, "application/json", b'{"error": "broken", "code": "INTERNAL"}', "PLATFORM_ERROR", "broken"),
        (429, "application/json", b'{"error": "slower, please"}', "RATE_LIMITED", "slower, please"),
        (
            426,
            "application/json",
            b'{"status": "unsupported", "message": "Upgrade to 9.9."}',
            "UPGRADE_REQUIRED",
            "Upgrade to 9.9.",
        ),
    ],
    ids=["HTML", "500", "429", "426"],
)
def test_a_platform_that_is_not_well_is_told_as_what_it_is(
    world: World, status: int, kind: str, body: bytes, code: str, words: str
) -> None:
    with unwell(status, kind, body) as url:
        there = {
            "OSMOSIS_PLATFORM_URL": url,
            "OSMOSIS_TOKEN": "osm_some_token",
            "OSMOSIS_TOKEN_PLATFORM_URL": url,
        }
        error = world.json("eval", "submit", CONFIG, "--yes", **there).error
    assert error["code"] == code and words in error["message"], error


def test_a_platform_that_is_not_there_is_named_with_what_to_do(world: World) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # so that nobody else gets it, and nobody listens
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        there = {"OSMOSIS_PLATFORM_URL": url, "OSMOSIS_TOKEN": "osm_t", "OSMOSIS_TOKEN_PLATFORM_URL": url}
        outcome = world.json("eval", "list", **there)
    assert outcome.error["code"] == "PLATFORM_ERROR"
    assert url in said(outcome) and "osmosis platform start" in said(outcome)


# Datasets


def test_an_unknown_dataset_is_told_with_those_like_it(world: World) -> None:
    error = world.submit("unknown", dataset="multipy").error
    assert "no dataset 'multipy'" in error["message"] and "multiply" in error["message"]
    assert world.json("dataset", "info", "multipy").error["code"] == "NOT_FOUND"


@pytest.mark.parametrize(
    ("status", "problem", "words"),
    [("processing", None, "is still"), ("error", "line 3: not valid JSON", "cannot be used")],
)
def test_a_dataset_that_is_not_ready_is_no_dataset_to_run_on(
    world: World, status: str, problem: str | None, words: str
) -> None:
    name = f"rows-{status}"
    (world.root / "data" / f"{name}.jsonl").write_text(ROWS)
    assert world.osmosis("dataset", "upload", f"data/{name}.jsonl", "--wait", "--yes").status == 0
    with world.database() as db, db.transaction() as session:
        session.execute(update(DbDataset).where(DbDataset.name == name).values(status=status, error=problem))
    for outcome in (world.submit(status, dataset=name), world.json("dataset", "download", name)):
        assert name in outcome.error["message"] and words in outcome.error["message"], outcome.error


def test_a_name_that_is_taken_needs_overwrite(world: World) -> None:
    outcome = world.json("dataset", "upload", "data/multiply.jsonl", "--yes")
    assert outcome.error["code"] == "CONFLICT" and "--overwrite" in said(outcome)


@pytest.mark.parametrize(
    "name", ["a/b", "..", ".", "../../etc/passwd", "with space", "ünïcödé", "x" * 300, "%2F", "a\nb"]
)
def test_any_name_is_one_name_and_leads_nowhere_else(world: World, name: str) -> None:
    for command in (("dataset", "info"), ("eval", "info"), ("eval", "logs")):
        error = world.json(*command, name).error
        assert error["code"] in ("NOT_FOUND", "VALIDATION"), (command, error)
    error = world.submit("names", dataset=name.replace("\n", " ")).error
    assert error["code"] in ("NOT_FOUND", "VALIDATION"), error


@pytest.mark.parametrize("stem", ["ünï cödé 数", "x" * 240])
def test_a_file_of_an_odd_name_is_stored_and_found_or_refused_in_a_sentence(world: World, stem: str) -> None:
    path = world.root / "data" / f"{stem}.jsonl"
    path.write_text(ROWS)
    outcome = world.json("dataset", "upload", str(path), "--wait", "--yes")
    path.unlink()
    if outcome.status == 0:
        assert world.json("dataset", "info", stem).resource["file_name"] == stem
    else:
        assert outcome.error["code"] == "VALIDATION" and "name" in outcome.error["message"]


# Secrets


def test_all_secrets_that_are_neither_stored_nor_supplied_are_named(world: World, tmp_path: Path) -> None:
    values = tmp_path / "values.env"
    values.write_text(f"GIVEN_KEY={CANARY}\n")
    outcome = world.submit(
        "secrets", "--secrets-file", str(values), secrets='"GIVEN_KEY", "FIRST_KEY", "SECOND_KEY"'
    )
    error = outcome.error
    assert error["details"]["missing"] == ["FIRST_KEY", "SECOND_KEY"]
    assert "osmosis secret set FIRST_KEY" in error["message"]
    assert CANARY not in outcome.err


# Code


def test_a_commit_that_is_not_pushed_unknown_or_no_sha_is_refused(world: World, tmp_path: Path) -> None:
    clone = tmp_path / "agents"
    world.git("clone", "-q", str(world.scratch.origin), str(clone))
    world.git("commit", "-q", "--allow-empty", "-m", "not pushed", cwd=clone)
    for commit, words in (
        (world.git("rev-parse", "HEAD", cwd=clone), "git push"),
        ("0123456789abcdef0123456789abcdef01234567", "no commit"),
        ("main", "hexadecimal"),
    ):
        outcome = world.submit("commits", commit_sha=commit)
        assert outcome.error["code"] == "VALIDATION", outcome.error
        assert "experiment.commit_sha" in said(outcome)
        assert words in said(outcome), outcome.error


def test_an_environment_that_does_not_build_fails_the_run_with_the_reason(world: World) -> None:
    world.git("checkout", "-q", "-b", "unbuildable")
    project = world.root / "rollouts" / "multiply" / "pyproject.toml"
    before = project.read_text()
    project.write_text(re.sub(r'("osmosis-ai[^"]*")', r'\1, "no-such-package-of-osmosis==9"', before))
    world.git("commit", "-q", "-am", "need what nobody has")
    world.git("push", "-q", "origin", "unbuildable")
    world.git("checkout", "-q", "main")
    outcome = world.submit("unbuildable", "--watch", branch="unbuildable")
    assert outcome.status == 1
    assert "no-such-package-of-osmosis" in outcome.out + outcome.err
    run = world.json("eval", "list").resource["items"][0]
    described = world.osmosis("eval", "info", run["name"], "--plain")
    assert (
        "no-such-package-of-osmosis" in described.out and "osmosis eval logs" in described.out + described.err
    )


def test_a_model_nobody_serves_is_rejected_and_one_that_refuses_the_key_fails_the_run(
    world: World, tmp_path: Path
) -> None:
    error = world.submit("model", model_path="osmosis/tyni").error
    assert "osmosis/tiny" in error["message"]
    values = tmp_path / "values.env"
    values.write_text(f"OPENAI_API_KEY={CANARY}\n")
    body = json.dumps({"error": {"message": f"the key {CANARY} was revoked in May"}}).encode()
    with unwell(401, "application/json", body) as provider:
        outcome = world.submit(
            "refused",
            "--watch",
            "--secrets-file",
            str(values),
            model_path="openai/stand-in",
            env=f'OPENAI_BASE_URL = "{provider}/v1"',
            secrets='"OPENAI_API_KEY"',
        )
    assert outcome.status == 1
    assert "was revoked in May" in outcome.out + outcome.err
    assert CANARY not in outcome.out + outcome.err


# Runs


def test_two_submits_at_once_become_two_runs(world: World) -> None:
    config = world.write_config("twice")
    with ThreadPoolExecutor(2) as threads:
        both = list(threads.map(lambda _: world.json("eval", "submit", config, "--yes"), range(2)))
    assert len({outcome.resource["name"] for outcome in both}) == 2
    for outcome in both:
        watched = world.json("eval", "watch", outcome.resource["name"])
        assert watched.resource["status"] == "finished"


def test_stopping_a_finished_run_changes_nothing(world: World) -> None:
    run = world.submit("stopped", "--watch").resource
    stopped = world.json("eval", "stop", run["name"], "--yes")
    assert stopped.status == 0 and "finished" in stopped.out
    assert world.json("eval", "info", run["name"]).resource["eval_run"]["status"] == "finished"


# Limits


def test_a_body_of_a_gigabyte_is_refused_before_it_is_sent(world: World, token: str) -> None:
    connection = http.client.HTTPConnection(urlsplit(world.url).netloc, timeout=300)
    connection.putrequest("POST", "/api/cli/eval-runs")
    headers = {
        "Authorization": f"Bearer {token}",
        "X-Osmosis-Git": "fern/agents",
        "Content-Length": str(1 << 30),
    }
    for name, value in {**headers, "Content-Type": "application/json"}.items():
        connection.putheader(name, value)
    connection.endheaders(b"{")
    reply = connection.getresponse()
    assert reply.status == 413
    assert json.loads(reply.read())["code"] == "BODY_TOO_LARGE"
    connection.close()


def test_a_locked_database_delays_a_write_and_no_read(world: World) -> None:
    lock = sqlite3.connect(world.platform.home / "platform.db", isolation_level=None)
    lock.execute("BEGIN IMMEDIATE")
    try:
        waiting = subprocess.Popen(
            [*PROGRAM, "--json", "secret", "set", "LOCKED_KEY", "--env", "VALUE"],
            cwd=world.root,
            env={**world.platform.env, "VALUE": CANARY},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert world.json("eval", "list").status == 0
        assert world.json("secret", "list").status == 0
        assert waiting.poll() is None, "it did not wait for the lock"
    finally:
        lock.execute("COMMIT")
        lock.close()
    _, err = waiting.communicate(timeout=300)
    assert waiting.returncode == 0, err
    assert "LOCKED_KEY" in world.json("secret", "list").out


def test_a_full_disk_is_told_and_leaves_the_platform_well(tmp_path: Path) -> None:
    scratch = prepare_scratch(tmp_path / "demo")
    scratch.push()
    with running(scratch, prepare=partial(limit_files, 3_000_000), **NO_CACHED_CODE) as env:

        def osmosis(*words: str) -> Outcome:
            return run(*words, cwd=scratch.workspace, env=env)

        assert osmosis("platform", "connect", str(scratch.origin)).status == 0
        large = scratch.workspace / "data" / "large.jsonl"
        row = json.dumps({"user_prompt": "a" * 1000, "ground_truth": "1"}) + "\n"
        large.write_text(row * 4000)
        refused = osmosis("dataset", "upload", "data/large.jsonl", "--yes")
        assert "disk is full" in said(refused), refused.error
        assert osmosis("dataset", "upload", "data/multiply.jsonl", "--wait", "--yes").status == 0
        listed = json.loads(osmosis("dataset", "list").out)["items"]
        assert {item["file_name"]: item["status"] for item in listed}["multiply"] == "uploaded"
