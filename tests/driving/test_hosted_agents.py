"""The bootstrap hosts agent loops: named as `module:attribute`, or held by a rollout directory's entrypoint."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from osmosis_ai.driving.rollout_runner import prepare_server
from osmosis_ai.driving.server_process import RolloutServer
from osmosis_ai.rollout.loop.workflow import SETTINGS_ENV
from osmosis_ai.supervision import ServiceError, open_server_session, server_url
from tests.driving.test_server_process import ask
from tests.rollout.world import Controller

pytestmark = pytest.mark.integration

AGENT = """
import sys

from osmosis_ai.rollout import RolloutAgentLoop
from osmosis_ai.supervision import open_server_session, server_url

assert __name__ == "agent"


class Echo(RolloutAgentLoop):
    name = "echo"

    def get_tools(self, request):
        return []

    async def run(self, ctx):
        reply = await ctx.chat(ctx.request.messages)
        return ctx.complete([*ctx.request.messages, reply.message])


agent_loop = Echo()


def correct(solution_str, ground_truth, extra_info):
    return float(solution_str == ground_truth)


eval_fns = [correct]

if __name__ == "__main__":
    raise AssertionError("it serves by itself")
"""


async def prepared(directory: Path, entrypoint: str, settings: dict[str, Any] | None = None) -> RolloutServer:
    variables = {SETTINGS_ENV: json.dumps(settings)} if settings is not None else {}
    _, server = await prepare_server(
        directory,
        entrypoint,
        environ=os.environ,
        variables=variables,
        secret_values={},
        artifact_root=directory / "trials",
        log_path=directory / "server.log",
        cache_dir=directory / "cache",
        note=lambda _: None,
    )
    return server


async def rollout(server: RolloutServer) -> dict[str, Any]:
    """Run one rollout and return the grader's report."""
    async with (
        Controller().serving() as controller,
        open_server_session(server.base_url, timeout_s=60) as session,
    ):
        async with session.post(
            server_url(server.base_url, "/rollout"), json=controller.init_body()
        ) as reply:
            assert reply.status == 202
        return await controller.wait_for("grader")


async def test_an_agent_loop_is_hosted_by_its_name_and_from_an_entrypoint_under_its_own_name(
    tmp_path: Path,
) -> None:
    (tmp_path / "agent.py").write_text(AGENT)
    # A pyproject that nobody could satisfy: what is named as an attribute runs in this interpreter all the same.
    settings = {"eval_fns": ["agent:correct"], "needs_reward": False}
    pyproject = tmp_path / "pyproject.toml"
    pyproject.write_text('[project]\nname = "x"\nversion = "1"\ndependencies = ["no-such-package-at-all"]\n')
    for entrypoint, said, name in (("agent:Echo", settings, "agent:correct"), ("agent.py", None, "correct")):
        async with await prepared(tmp_path, entrypoint, said) as server:
            assert (await ask(server))["concurrency"]["max_concurrent"] is None
            assert server.capacity is None
            report = await rollout(server)
        assert report["status"] == "success", report
        assert report["sample"]["reward"] == 1.0
        assert report["sample"]["extra_fields"]["agent_loop"]["scores"] == {name: 1.0}
        pyproject.unlink(missing_ok=True)


@pytest.mark.parametrize(
    ("source", "entrypoint", "settings", "words"),
    [
        (AGENT, "agent:Ecco", None, "module 'agent' has no attribute 'Ecco' (did you mean 'Echo'?)"),
        ("agent_loop = 3\n", "agent.py", None, "agent:agent_loop is of type int, no RolloutAgentLoop"),
    ],
)
async def test_what_is_wrong_with_an_agent_is_the_reason_that_its_server_does_not_start(
    tmp_path: Path, source: str, entrypoint: str, settings: dict[str, Any] | None, words: str
) -> None:
    (tmp_path / "agent.py").write_text(source)
    server = await prepared(tmp_path, entrypoint, settings)
    with pytest.raises(ServiceError) as caught:
        await server.start()
    assert words in caught.value.message
    assert "Traceback" not in (tmp_path / "server.log").read_text()
