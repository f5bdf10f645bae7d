"""Commands in a cloned repository whose `.env` tries to get keys and to run programs."""

from __future__ import annotations

import http.server
import json
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.logins import save_login
from tests.warm_osmosis import run_osmosis
from tests.workspace.builders import git, make_workspace

pytestmark = pytest.mark.e2e

TOKEN, KEY, UNRELATED = "osm_u_canary-token", "sk-canary-key", "canary-of-the-cloud"
# Where nobody listens: what is not redirected must not reach the network of the test's machine either.
DEAD_END = "http://127.0.0.1:9"


class Thief:
    """A server that records all requests."""

    def __init__(self) -> None:
        self.heard: list[str] = []
        heard = self.heard

        class Listener(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                heard.append(f"{self.requestline}\n{self.headers}")
                self.send_error(401)

            do_POST = do_GET

            def log_message(self, *_: object) -> None:
                """Keep the test's output clean."""

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Listener)
        self.url = f"http://127.0.0.1:{self.server.server_port}"


@pytest.fixture
def thief() -> Iterator[Thief]:
    thief = Thief()
    thread = threading.Thread(target=thief.server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield thief
    thief.server.shutdown()
    thief.server.server_close()


class Victim:
    """A clone, the shell of its user, and a Git that records its environment."""

    def __init__(self, directory: Path) -> None:
        self.root = make_workspace(directory / "clone").root
        git(self.root, "remote", "add", "origin", "https://github.com/fern/maze.git")
        self.trap, self.sprung = directory / "trap", directory / "sprung"
        self.trap.write_text(f"#!/bin/sh\necho $0 >> {self.sprung}\nexit 1\n")
        self.trap.chmod(0o755)
        bin_directory = directory / "bin"
        bin_directory.mkdir()
        self.given_to_git = directory / "given-to-git"
        wrapper = bin_directory / "git"
        wrapper.write_text(f'#!/bin/sh\nenv >> {self.given_to_git}\nexec {shutil.which("git")} "$@"\n')
        wrapper.chmod(0o755)
        self.shell = {
            **{name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")},
            "PATH": f"{bin_directory}{os.pathsep}{os.environ['PATH']}",
            "HTTPS_PROXY": DEAD_END,
            "AWS_SECRET_ACCESS_KEY": UNRELATED,
        }

    def hostile_env(self, *lines: str) -> None:
        (self.root / ".env").write_text("\n".join(lines) + "\n")

    def run(self, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
        return run_osmosis(*words, cwd=self.root, env={**self.shell, **variables})


@pytest.fixture
def victim(tmp_path: Path) -> Victim:
    return Victim(tmp_path)


@pytest.mark.parametrize("login", ["shell", "saved"])
def test_doctor_in_a_hostile_repository(
    victim: Victim, thief: Thief, monkeypatch: pytest.MonkeyPatch, login: str
) -> None:
    monkeypatch.setenv("OSMOSIS_TOKEN_STORE", "file")
    if login == "saved":
        save_login("https://platform.osmosis.ai", token=TOKEN)
        save_login(thief.url, token=TOKEN)
    evil = victim.root / "evil"
    evil.mkdir()
    shutil.copy(victim.trap, evil / "git")
    victim.hostile_env(
        *(f"LD_PRELOAD={evil}/evil.so", f"PATH={evil}", f"BASH_ENV={victim.trap}", f"PYTHONPATH={evil}"),
        *("GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=core.sshCommand", f"GIT_CONFIG_VALUE_0={victim.trap}"),
        *(f"GIT_EXTERNAL_DIFF={victim.trap}", f"GIT_EXEC_PATH={evil}"),
        *(f"OSMOSIS_PLATFORM_URL={thief.url}", f"OSMOSIS_TOKEN_PLATFORM_URL={thief.url}"),
    )
    done = victim.run("doctor", "--json", **({"OSMOSIS_TOKEN": TOKEN} if login == "shell" else {}))
    assert thief.heard == []
    assert not victim.sprung.exists()
    assert done.returncode == 0
    assert json.loads(done.stdout)["resource"]["valid"] is True
    (warning,) = [json.loads(line)["warning"] for line in done.stderr.splitlines()]
    for name in (
        "LD_PRELOAD",
        "PATH",
        "GIT_CONFIG_COUNT",
        "OSMOSIS_PLATFORM_URL",
        "osmosis --platform URL login",
    ):
        assert name in warning["message"]
    given = victim.given_to_git.read_text()
    assert "evil" not in given
    assert TOKEN not in given and UNRELATED not in given
    assert TOKEN not in done.stdout + done.stderr


@pytest.mark.parametrize(
    "lines, reached", [(("HOSTED_VLLM_API_KEY=bait",), False), ((), True)], ids=["bait", "no key"]
)
def test_shell_key_is_not_sent_to_an_address_of_the_env_file(
    victim: Victim, thief: Thief, lines: tuple[str, ...], reached: bool
) -> None:
    (victim.root / "records.jsonl").write_text('{"id": "1", "solution_str": "four"}\n')
    victim.hostile_env(f"HOSTED_VLLM_API_BASE={thief.url}/v1", *lines)
    judge = ["eval", "rubric", "-d", "records.jsonl", "-r", "Right?", "--model", "hosted_vllm/m", "--plain"]
    refused = victim.run(*judge, HOSTED_VLLM_API_KEY=KEY)
    assert refused.returncode == 1
    assert "HOSTED_VLLM_API_BASE" in refused.stderr and "HOSTED_VLLM_API_KEY" in refused.stderr
    assert bool(thief.heard) is reached
    assert not any(KEY in request for request in thief.heard)
