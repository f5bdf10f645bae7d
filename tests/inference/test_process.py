from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from osmosis_ai.errors import OsmosisError
from osmosis_ai.inference import InferenceServer
from osmosis_ai.inference.process import API_KEY_ENV
from tests.inference.conftest import body, multiply_tool, question, save_adapter
from tests.processes import alive

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


async def test_openai_client() -> None:
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


async def test_the_key_is_hidden_and_the_server_stops() -> None:
    async with InferenceServer() as server:
        exited = asyncio.ensure_future(server.death())
        await asyncio.sleep(0)
        assert server.base_url.startswith("http://127.0.0.1:")
        command = Path(f"/proc/{server.pid}/cmdline")
        shown = [repr(server), *server.log_tail(), command.read_text() if command.exists() else ""]
        assert server.api_key not in "".join(shown)
    assert (await exited).status == 0
    with pytest.raises(OsmosisError, match="is not running"):
        _ = server.base_url


def test_the_server_ends_with_a_killed_parent() -> None:
    program = (
        "import asyncio\n"
        "from osmosis_ai.inference import InferenceServer\n"
        "async def main():\n"
        "    server = InferenceServer()\n"
        "    await server.start()\n"
        "    print(server.pid, flush=True)\n"
        "    await asyncio.sleep(600)\n"
        "asyncio.run(main())\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        parent.kill()
    deadline = time.monotonic() + 300
    while alive(child):
        assert time.monotonic() < deadline, "the server outlived its parent"
        time.sleep(0.05)


def test_a_server_without_a_key_does_not_start() -> None:
    environment = {key: value for key, value in os.environ.items() if key != API_KEY_ENV}
    command = [sys.executable, "-m", "osmosis_ai.inference", "--model=osmosis/tiny", "--served-as=x"]
    found = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert found.returncode == 2 and API_KEY_ENV in found.stderr


@pytest.mark.imports_much
async def test_both_engines_serve_an_adapter(model_dir: Path, tmp_path: Path) -> None:
    pytest.importorskip("peft")
    save_adapter(model_dir, tmp_path)
    name = "fern/any:better"
    options = {"temperature": 0.0, "logprobs": True, "return_token_ids": True}
    async with (
        InferenceServer() as base,
        InferenceServer(adapter=tmp_path, served_as=name) as numpy,
        InferenceServer(str(model_dir), adapter=tmp_path, served_as=name) as torch,
    ):
        assert numpy.model == torch.model == name
        unadapted = await ask(base, **options)
        replies = [await ask(server, **options, model=name) for server in (numpy, torch)]
    assert [reply["model"] for reply in replies] == [name, name]
    (theirs,), (ours,) = (reply["choices"] for reply in replies)
    assert ours["token_ids"] == theirs["token_ids"]
    assert ours["message"] == theirs["message"]
    logprobs = [[token["logprob"] for token in one["logprobs"]["content"]] for one in (ours, theirs)]
    assert logprobs[0] == pytest.approx(logprobs[1], abs=1e-4)
    assert theirs["logprobs"] != unadapted["choices"][0]["logprobs"]


async def test_a_server_that_cannot_start(tmp_path: Path) -> None:
    server = InferenceServer(adapter=tmp_path)
    words = r"ended before it was ready \(exit status 1\)[\s\S]*there is no adapter in .*adapter_config\.json` is missing"
    with pytest.raises(OsmosisError, match=words) as failed:
        await server.start()
    assert server.api_key not in str(failed.value)
