"""A model with a fixed latency whose answers are right, wrong, or tool calls.

An answer depends on the conversation and the seed only, so repeated requests get the same one. As a process it prints its
address, then serves until it is ended:

    python scripts/nightly/paced_model.py --latency-ms 200
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import re
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.standin_model import Reply, StandInModel

_FACTORS = re.compile(r"-?\d[\d,]*")


def answer(body: dict[str, Any]) -> Reply:
    """Return the answer to a chat completion request."""
    messages = body["messages"]
    draw = hashlib.sha256(json.dumps([messages, body.get("seed")], sort_keys=True).encode()).digest()
    question = next(message["content"] for message in messages if message["role"] == "user")
    numbers = [int(found.replace(",", "")) for found in _FACTORS.findall(question)][:2]
    if len(numbers) < 2 or draw[0] < 64:
        return Reply(content=f"I would say #### {draw[1]}")
    if draw[0] < 128 and messages[-1]["role"] == "user":
        return Reply(content=None, tool_calls=[("multiply", {"a": numbers[0], "b": numbers[1]})])
    return Reply(content=f"It is #### {numbers[0] * numbers[1]}")


async def _serve(latency_s: float) -> None:
    async with StandInModel(answer, latency_s=latency_s, record=False) as model:
        print(model.base_url, flush=True)
        await asyncio.Event().wait()


def main() -> None:
    """Serve until ended."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--latency-ms", type=float, default=200.0)
    asyncio.run(_serve(parser.parse_args().latency_ms / 1000))


if __name__ == "__main__":
    main()
