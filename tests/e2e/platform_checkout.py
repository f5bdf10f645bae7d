"""A platform in its own process, a checkout that is connected to it, and commands as processes in the checkout."""

from __future__ import annotations

import http.client
import json
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from osmosis_ai.services.demo import Scratch as Scratch
from osmosis_ai.services.demo import prepare_scratch as prepare_scratch
from tests.e2e.platform_process import Platform
from tests.warm_osmosis import run_osmosis


class Outcome(NamedTuple):
    """The result of a command."""

    status: int
    out: str
    err: str

    @property
    def resource(self) -> dict[str, Any]:
        assert self.status == 0, self.err
        found: dict[str, Any] = json.loads(self.out)
        return found.get("resource") or found.get("data") or found

    @property
    def error(self) -> dict[str, Any]:
        """The error; the command has no other output."""
        assert self.status == 1 and self.out == "", self.out + self.err
        found: dict[str, Any] = json.loads(self.err.splitlines()[-1])["error"]
        assert "Traceback" not in self.err
        return found


def said(outcome: Outcome) -> str:
    """Return the message of an error, and its hint."""
    return f"{outcome.error['message']} {outcome.error.get('hint', '')}"


class World:
    """A platform, and a checkout that is connected to it.

    Args:
        scratch: The directory of the platform.
        prepare: Called in the platform's process before it starts.
        settings: Further environment variables of the platform.
    """

    def __init__(
        self, scratch: Scratch, *, prepare: Callable[[], None] | None = None, **settings: str
    ) -> None:
        self.scratch = scratch
        self.platform = Platform(scratch, settings=settings, prepare=prepare)
        self.url = self.platform.env["OSMOSIS_PLATFORM_URL"]
        self.root = scratch.workspace

    def close(self) -> None:
        """Stop the platform with SIGTERM."""
        self.platform.process.send_signal(signal.SIGTERM)
        self.platform.process.wait(timeout=300)

    def osmosis(self, *words: str, cwd: Path | None = None, **env: str | None) -> Outcome:
        wanted = {**self.platform.env, **env}
        given = {name: value for name, value in wanted.items() if value is not None}
        done = run_osmosis(*words, cwd=cwd or self.root, env=given)
        return Outcome(done.returncode, done.stdout, done.stderr)

    def json(self, *words: str, cwd: Path | None = None, **env: str | None) -> Outcome:
        return self.osmosis("--json", *words, cwd=cwd, **env)

    def write_config(self, name: str, *, secrets: str = "", env: str = "", **experiment: str) -> str:
        facts = {
            "rollout": "multiply",
            "entrypoint": "main.py",
            "model_path": "osmosis/tiny",
            "dataset": "multiply",
            **experiment,
        }
        lines = "\n".join(f'{key} = "{value}"' for key, value in facts.items())
        text = f"[experiment]\n{lines}\n[evaluation]\nlimit = 2\nn = 1\n[env]\n{env}\n"
        path = self.root / "configs" / "eval" / f"{name}.toml"
        path.write_text(f"{text}[secrets]\nrequired = [{secrets}]\n")
        return f"configs/eval/{name}.toml"

    def submit(self, name: str, *options: str, **facts: Any) -> Outcome:
        return self.json("eval", "submit", self.write_config(name, **facts), "--yes", *options)

    def git(self, *words: str, cwd: Path | None = None) -> str:
        done = subprocess.run(
            ["git", "-c", "user.name=Mara", "-c", "user.email=mara@fern.example", *words],
            cwd=cwd or self.root,
            check=True,
            capture_output=True,
            text=True,
        )
        return done.stdout.strip()

    def request(self, method: str, path: str, *, token: str | None = None, **headers: str) -> tuple[int, Any]:
        """Send a request; return the status and JSON of the reply."""
        connection = http.client.HTTPConnection(urlsplit(self.url).netloc, timeout=300)
        try:
            auth = {"Authorization": f"Bearer {token}"} if token else {}
            connection.request(method, path, headers={**auth, **headers})
            reply = connection.getresponse()
            return reply.status, json.loads(reply.read())
        finally:
            connection.close()


@contextmanager
def connected_world(root: Path) -> Iterator[World]:
    """Run a platform with the demo's checkout below ``root`` connected to it, until the block ends."""
    scratch = prepare_scratch(root / "demo")
    scratch.push()
    world = World(scratch)
    try:
        connected = world.json("platform", "connect", str(scratch.origin), "--identity", "fern/agents")
        assert connected.resource["identity"] == "fern/agents"
        yield world
    finally:
        world.close()
