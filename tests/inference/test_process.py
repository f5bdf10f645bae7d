from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from osmosis_ai.errors import OsmosisError
from osmosis_ai.inference import InferenceServer
from osmosis_ai.inference.process import API_KEY_ENV
from tests.inference.conftest import body, multiply_tool, question, save_adapter

pytestmark = pytest.mark.e2e


async def ask(server: InferenceServer, **changes: Any) -> dict[str, Any]:
    headers = {"Authorization": f"Bearer {server.api_key}"}
    async with (
        aiohttp.ClientSession(headers=headers) as session,
        session.post(f"{server.base_url}/chat/completions", json=body(**changes)) as response,
    ):
        assert response.status == 200, await response.text()
        reply: dict[str, Any] = await response.json()
        return reply


async def test_the_openai_client_works_unchanged() -> None:
    import openai

    async with (
        InferenceServer() as server,
        openai.AsyncOpenAI(base_url=server.base_url, api_key=server.api_key, max_retries=0) as client,
    ):
        for seed in range(8):
            options: dict[str, Any] = {"messages": question(), "tools": [multiply_tool()], "seed": seed}
            whole = await client.chat.completions.create(model="osmosis/tiny", logprobs=True, **options)
            content, calls = "", []
            stream = await client.chat.completions.create(model="osmosis/tiny", stream=True, **options)
            async for chunk in stream:
                content += chunk.choices[0].delta.content or ""
                calls += [call.function.arguments for call in chunk.choices[0].delta.tool_calls or []]
            message = whole.choices[0].message
            assert content == (message.content or "")
            assert calls == [call.function.arguments for call in message.tool_calls or []]
            assert whole.choices[0].logprobs.content[0].logprob < 0
        with pytest.raises(openai.BadRequestError, match="cannot be forced") as refused:
            await client.chat.completions.create(model="osmosis/tiny", tool_choice="required", **options)
        assert refused.value.param == "tool_choice"
        with pytest.raises(openai.NotFoundError):
            await client.chat.completions.create(model="gpt-9", messages=question())
        assert [model.id async for model in client.models.list()] == ["osmosis/tiny"]


async def test_the_key_is_neither_on_the_command_line_nor_in_the_representation() -> None:
    async with InferenceServer() as server:
        command = Path(f"/proc/{server.pid}/cmdline")
        if command.exists():
            assert server.api_key not in command.read_text()
        assert server.api_key not in repr(server)
        assert server.api_key not in "".join(server.log_tail())


async def test_the_server_ends_with_the_block_and_says_so() -> None:
    async with InferenceServer() as server:
        exited = asyncio.ensure_future(server.death())
        await asyncio.sleep(0)
        assert server.base_url.startswith("http://127.0.0.1:")
    assert (await exited).status == 0
    with pytest.raises(OsmosisError, match="is not running"):
        _ = server.base_url


def test_the_server_dies_with_a_parent_that_is_killed() -> None:
    program = (
        "import asyncio, os, sys\n"
        "from osmosis_ai.inference import InferenceServer\n"
        "async def main():\n"
        "    server = InferenceServer()\n"
        "    await server.start()\n"
        "    print(server.pid, flush=True)\n"
        "    await asyncio.sleep(600)\n"
        "asyncio.run(main())\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    watch = os.pidfd_open(child) if hasattr(os, "pidfd_open") else None
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    if watch is None:
        pytest.skip("needs pidfd_open to wait for a process that is not a child")
    import select

    assert select.select([watch], [], [], 300)[0], "the server outlived its parent"
    os.close(watch)


def test_an_unknown_model_no_room_and_an_open_address_without_a_key_are_errors() -> None:
    environment = {key: value for key, value in os.environ.items() if key != API_KEY_ENV}

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "osmosis_ai.inference", *arguments]
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)

    exposed = run("--host", "0.0.0.0")
    assert exposed.returncode == 2 and API_KEY_ENV in exposed.stderr
    no_room = run("--max-batch", "0")
    assert no_room.returncode == 2 and "--max-batch" in no_room.stderr
    unknown = run("--model", "osmosis/huge")
    assert unknown.returncode == 1 and unknown.stderr.startswith("error: there is no built-in model")


@pytest.mark.imports_much
async def test_both_engines_serve_an_adapter_under_its_own_name_with_the_same_probabilities(
    model_dir: Path, tmp_path: Path
) -> None:
    pytest.importorskip("peft")
    save_adapter(model_dir, tmp_path)
    name = "fern/any:better"
    asked = {"temperature": 0.0, "logprobs": True, "return_token_ids": True}
    async with (
        InferenceServer() as base,
        InferenceServer(adapter=tmp_path, served_as=name) as numpy,
        InferenceServer(str(model_dir), engine="torch", adapter=tmp_path, served_as=name) as torch,
    ):
        assert numpy.model == torch.model == name
        unadapted = await ask(base, **asked)
        replies = [await ask(server, **asked, model=name) for server in (numpy, torch)]
    assert [reply["model"] for reply in replies] == [name, name]
    (theirs,), (ours,) = (reply["choices"] for reply in replies)
    assert ours["token_ids"] == theirs["token_ids"]
    assert ours["message"] == theirs["message"]
    logprobs = [[token["logprob"] for token in one["logprobs"]["content"]] for one in (ours, theirs)]
    assert logprobs[0] == pytest.approx(logprobs[1], abs=1e-4)
    assert theirs["logprobs"] != unadapted["choices"][0]["logprobs"]


async def test_a_server_that_cannot_start_shows_what_it_wrote(tmp_path: Path) -> None:
    server = InferenceServer(adapter=tmp_path)
    words = r"ended before it was ready \(exit status 1\)[\s\S]*there is no adapter in .*adapter_config\.json` is missing"
    with pytest.raises(OsmosisError, match=words) as failed:
        await server.start()
    assert server.api_key not in str(failed.value)
