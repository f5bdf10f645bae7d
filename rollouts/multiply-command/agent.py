"""An agent that knows nothing of Osmosis: a plain script that speaks OpenAI's API, with the standard library alone.

It reads a question from its standard input, lets the model call a tool, and prints the answer. It runs by itself, too:

    echo "Compute 6 * 7." | OPENAI_API_KEY=... OPENAI_BASE_URL=https://api.openai.com/v1 MODEL=gpt-5-mini python agent.py
"""

from __future__ import annotations

import json
import os
import sys
import urllib.request
from typing import Any

MAX_TURNS = 4
INTEGERS = {"a": {"type": "integer"}, "b": {"type": "integer"}}
MULTIPLY = {
    "name": "multiply",
    "description": "Multiply two integers.",
    "parameters": {"type": "object", "properties": INTEGERS, "required": ["a", "b"]},
}


def ask(messages: list[dict[str, Any]]) -> dict[str, Any]:
    body = {
        "model": os.environ.get("MODEL", "any"),
        "messages": messages,
        "tools": [{"type": "function", "function": MULTIPLY}],
    }
    request = urllib.request.Request(
        os.environ["OPENAI_BASE_URL"] + "/chat/completions",
        json.dumps(body).encode(),
        {"Authorization": f"Bearer {os.environ['OPENAI_API_KEY']}", "Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request) as reply:
        message: dict[str, Any] = json.load(reply)["choices"][0]["message"]
    return message


def call_tool(call: dict[str, Any]) -> dict[str, Any]:
    """Run a tool call; what is wrong with it is told to the model, which may try again."""
    try:
        arguments = json.loads(call["function"]["arguments"])
        result = str(int(arguments["a"]) * int(arguments["b"]))
    except (KeyError, TypeError, ValueError) as error:
        result = f"error: bad arguments ({error})"
    return {"role": "tool", "tool_call_id": call["id"], "content": result}


def main() -> None:
    messages = [
        {"role": "system", "content": "Answer with #### and the number."},
        {"role": "user", "content": sys.stdin.read()},
    ]
    for _ in range(MAX_TURNS):
        answer = ask(messages)
        messages += [answer, *map(call_tool, answer.get("tool_calls") or ())]
        if not answer.get("tool_calls"):
            break
    print(messages[-1]["content"])


if __name__ == "__main__":
    main()
