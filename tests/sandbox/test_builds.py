"""Building an environment is running code of others: it happens in the sandbox, and what it makes runs there."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

import pytest

from osmosis_ai.controller.environments import RolloutEnvironment, prepare_environment
from osmosis_ai.controller.server_process import RolloutServer, ServerSpec
from osmosis_ai.errors import OsmosisError
from osmosis_ai.processes.addresses import open_server_session, server_url
from osmosis_ai.sandbox.bubblewrap import Sandbox
from osmosis_ai.sandbox.isolation import SandboxCapability
from tests.controller.test_environment import World, offline, wheelhouse

__all__ = ["offline", "wheelhouse"]
pytestmark = pytest.mark.e2e

SERVER = """
import os, sys
from pathlib import Path
import tinydep, uvicorn
from fastapi import FastAPI

app = FastAPI()

def read(path):
    try:
        return Path(path).read_text()
    except OSError as error:
        return type(error).__name__

@app.get("/health")
def health():
    Path("left.txt").write_text("x")
    return {"tinydep": tinydep.VERSION, "canary": read(os.environ["CANARY"]), "home": str(Path.home()), "user": os.getuid()}

if __name__ == "__main__":
    uvicorn.run(app, port=int(os.environ["_OSMOSIS_ROLLOUT_PORT"]))
"""
# A build back end that fails with the results of some actions.
BACK_END = """
import os
from pathlib import Path

DIRECTORY = Path(__file__).resolve().parents[3]

def result(action):
    try:
        return str(action())
    except OSError as error:
        return type(error).__name__

def build_wheel(*arguments, **named):
    raise SystemExit("results: " + ", ".join(map(result, [ACTIONS])))

get_requires_for_build_wheel = prepare_metadata_for_build_wheel = build_wheel
"""


def prepare(world: World, sandbox: Sandbox) -> RolloutEnvironment:
    return prepare_environment(
        world.rollout_dir, cache_dir=world.cache_dir, note=world.notes.append, sandbox=sandbox
    )


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


async def test_a_server_runs_in_an_environment_that_was_built_in_the_sandbox(
    world: World, tmp_path: Path, capability: SandboxCapability
) -> None:
    world.write(["osmosis-ai[server]", "tinydep==1.0"])
    world.write_file("main.py", SERVER)
    before = world.fingerprint()
    canary = tmp_path / "canary"
    canary.write_text(secrets.token_hex(8))
    sandbox = capability.sandbox(world.rollout_dir, hidden=[tmp_path])
    environment = prepare(world, sandbox)
    assert environment.kind == "uv"
    assert prepare(world, sandbox) == environment
    spec = ServerSpec(
        rollout_dir=world.rollout_dir,
        entrypoint="main.py",
        python=environment.python,
        env={"PATH": os.environ["PATH"], "CANARY": str(canary)},
        artifact_root=tmp_path / "trials",
        port=None,
        log_path=tmp_path / "server.log",
        sandbox=capability.sandbox(world.rollout_dir, hidden=[tmp_path], readable=environment.readable),
    )
    async with (
        RolloutServer(spec) as server,
        open_server_session(server.base_url, timeout_s=60) as session,
        session.get(server_url(server.base_url, "/health")) as reply,
    ):
        told = await reply.json()
    assert told == {"tinydep": "1.0", "canary": "FileNotFoundError", "home": "/home/rollout", "user": 1000}
    assert world.fingerprint() == before


def results_of_a_build(world: World, sandbox: Sandbox, *actions: str) -> str:
    world.write_file(
        "hostile/pyproject.toml",
        '[build-system]\nrequires = []\nbuild-backend = "back"\nbackend-path = ["."]\n'
        '[project]\nname = "hostile"\nversion = "1"\n',
    )
    actions = tuple(f"lambda: {action}" for action in actions)
    world.write_file("hostile/back.py", BACK_END.replace("ACTIONS", ", ".join(actions)))
    world.write(["osmosis-ai[server]", "hostile"], more='[tool.uv.sources]\nhostile = { path = "hostile" }\n')
    with pytest.raises(OsmosisError) as caught:
        prepare(world, sandbox)
    return caught.value.message.partition("results: ")[2].partition("\n")[0]


def test_a_build_back_end_reaches_no_canary_and_no_secret_of_the_run(
    world: World, tmp_path: Path, capability: SandboxCapability, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RUNS_SECRET", "canary-of-the-run")
    canary = tmp_path / "data" / "platform.db"
    canary.parent.mkdir()
    canary.write_text("canary-of-the-data")
    reads = [f"Path({path!r}).read_text()" for path in (str(canary), "/proc/1/root/etc/shadow")]
    environ = ["os.environ.get('RUNS_SECRET')", "os.environ['HOME']"]
    sandbox = capability.sandbox(world.rollout_dir, hidden=[canary.parent])
    results = results_of_a_build(world, sandbox, *reads, *environ)
    assert results == "FileNotFoundError, FileNotFoundError, None, /home/rollout"


def test_a_build_back_end_replaces_no_environment_and_not_the_sdk(
    world: World, capability: SandboxCapability
) -> None:
    (world.cache_dir / "environments" / "other").mkdir(parents=True)
    results = results_of_a_build(
        world,
        capability.sandbox(world.rollout_dir),
        "(DIRECTORY / 'environment' / 'pyvenv.cfg').exists()",
        "os.rename(DIRECTORY / 'environment', DIRECTORY / 'scratch' / 'moved')",
        "(DIRECTORY / 'sdk' / 'other.py').write_text('')",
        "os.listdir(DIRECTORY.parent) == [DIRECTORY.name]",
    )
    assert results == "True, OSError, FileNotFoundError, True"
