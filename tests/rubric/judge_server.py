"""A stand-in for a judge: an OpenAI-compatible server that does what the judged text tells it to.

The text between the candidate's delimiters may hold directives in brackets; the judge follows the first
that applies, so that a data file alone decides what a test or a whole process meets:

- ``[score 0.7]``: that score. Without any directive: ``score`` of the server.
- ``[noise 0.1]``: the score moves by up to that much from call to call, repeatably.
- ``[bias 0.1 judge-b]``: the judge of that name (the end of it) adds that much.
- ``[first 0.1]``: the score rises by that much where the text is quoted before the reference answer.
- ``[garbage]``, ``[prose]``, ``[list]``, ``[nan]``, ``[words]``, ``[empty]``, ``[refuse]``: no JSON at all; JSON
  within prose; a list; a score of NaN; a score in words; no text; a refusal.
- ``[once garbage]``: the same, the first time this text is seen; then the score.
- ``[status 500]``: that HTTP status; ``[once status 429]`` the first time, with ``Retry-After: 0.05``.
- ``[echo key]``: an error that quotes the key it was called with.
- ``[slow 0.5]``: an answer after that many seconds.

In a test::

    async with JudgeServer() as judge:
        ...  # point the code at judge.base_url
        assert judge.calls == 3

Beside a command that has an event loop of its own::

    with running_judge() as judge:
        main(["eval", "rubric", ...])

As a process (it prints its base URL, then serves until it is stopped)::

    python -m tests.rubric.judge_server --port 0 --latency-ms 200 --score 0.8
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import re
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from aiohttp import web

from tests.rubric.serving import end_other_tasks
from tests.standin_model import Reply, StandInModel, error_reply

_CANDIDATE = re.compile(r"<<<BEGIN_CANDIDATE_OUTPUT[^>]*>>>\n?(.*?)\n?<<<END_CANDIDATE_OUTPUT", re.DOTALL)
_DIRECTIVE = re.compile(r"\[((?:once )?[a-z]+(?: [^\]\n]{1,40})?)\]")


def candidate_of(body: dict[str, Any]) -> str:
    """Return the text that a judge's request asks to score."""
    for message in body["messages"]:
        if message["role"] == "user" and (found := _CANDIDATE.search(str(message["content"]))):
            return found[1]
    return ""


class JudgeServer(StandInModel):
    """A judge on 127.0.0.1, for as long as its ``async with`` block runs.

    Args:
        score: given where the text asks for nothing else.
        explanation: given with every score.
        latency_s: how long every reply takes, in seconds.
        limit: calls at once; further ones are refused with 429. May be set later.
        record: keep every request in ``requests``.

    Attributes:
        by_text: how often each text was judged, by text.
        broken: when set, every call is answered with this HTTP status.
    """

    def __init__(
        self,
        *,
        score: float = 0.5,
        explanation: str = "It follows the rubric.",
        latency_s: float = 0.0,
        limit: int | None = None,
        record: bool = True,
        api_key: str | None = None,
        port: int = 0,
    ) -> None:
        super().__init__(self._judge, latency_s=latency_s, record=record, api_key=api_key, port=port)
        self._score = score
        self._explanation = explanation
        self.limit = limit
        self.by_text: Counter[str] = Counter()
        self.broken: int | None = None
        self.key_seen = ""

    async def _chat_completions(self, request: web.Request) -> web.StreamResponse:
        self.key_seen = request.headers.get("Authorization", "").removeprefix("Bearer ")
        return await super()._chat_completions(request)

    def _judge(self, body: dict[str, Any]) -> Reply:
        text = candidate_of(body)
        self.by_text[text] += 1
        if self.broken is not None:
            return error_reply(self.broken, "The judge is out of order.")
        if self.limit is not None and self.in_flight >= self.limit:
            return error_reply(429, "Too many requests.", retry_after="0.05")
        again = len(body["messages"]) > 2 or self.by_text[text] > 1
        words = [found.split(" ") for found in _DIRECTIVE.findall(text)]
        slow_s = next((float(rest[0]) for name, *rest in words if name == "slow"), None)
        for name, *rest in words:
            if name == "once":
                if again:
                    continue
                name, *rest = rest
            reply = self._misbehave(name, rest)
            if reply is not None:
                reply.latency_s = slow_s
                return reply
        score = self._scored(text, words, str(body.get("model"))) + _of_place(words, body)
        return Reply(json.dumps({"score": score, "explanation": self._explanation}), latency_s=slow_s)

    def _misbehave(self, name: str, rest: list[str]) -> Reply | None:
        if name == "status":
            return error_reply(int(rest[0]), f"The judge answers {rest[0]}.", retry_after="0.05")
        if name == "echo":
            return error_reply(400, f"Bad request with the key {self.key_seen}.")
        content = {
            "garbage": "I would rather talk about the weather.",
            "prose": f'Let me think. {{"score": 0.25, "explanation": "{self._explanation}"}} That is all.',
            "list": '[{"score": 1.0, "explanation": "a list"}, {"score": 0.0, "explanation": "of two"}]',
            "nan": '{"score": NaN, "explanation": "not a number"}',
            "words": '{"score": "excellent", "explanation": "in words"}',
            "empty": "",
            "refuse": "I'm sorry, but I can't help with that.",
        }.get(name)
        return None if content is None else Reply(content)

    def _scored(self, text: str, words: list[list[str]], model: str) -> float:
        score = self._score
        for name, *rest in words:
            if name == "score":
                score = float(rest[0])
            elif name == "noise":
                place = f"{model}:{self.by_text[text]}:{text}"
                share = int.from_bytes(hashlib.sha256(place.encode()).digest()[:4], "big") / 2**32
                score += float(rest[0]) * (2 * share - 1)
            elif name == "bias" and model.endswith(rest[1]):
                score += float(rest[0])
        return round(score, 6)


def _of_place(words: list[list[str]], body: dict[str, Any]) -> float:
    """Return what the order of the quoted texts is worth to this judge."""
    asked = str(body["messages"][1]["content"])
    comes_first = asked.find("<<<BEGIN_CANDIDATE_OUTPUT") < asked.find("<<<BEGIN_GROUND_TRUTH")
    return sum(float(rest[0]) for name, *rest in words if name == "first" and comes_first)


@contextmanager
def running_judge(**settings: Any) -> Iterator[JudgeServer]:
    """Run a judge in a thread of its own."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    judge = JudgeServer(**settings)
    asyncio.run_coroutine_threadsafe(judge.__aenter__(), loop).result(300)
    try:
        yield judge
    finally:
        asyncio.run_coroutine_threadsafe(judge.__aexit__(), loop).result(300)
        asyncio.run_coroutine_threadsafe(end_other_tasks(), loop).result(300)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(60)
        loop.close()


async def _serve(arguments: argparse.Namespace) -> None:
    judge = JudgeServer(
        score=arguments.score,
        latency_s=arguments.latency_ms / 1000,
        limit=arguments.limit,
        record=False,
        port=arguments.port,
    )
    async with judge:
        print(judge.base_url, flush=True)
        await asyncio.Event().wait()


def main() -> None:
    parser = argparse.ArgumentParser(description="A local OpenAI-compatible judge.")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--latency-ms", type=float, default=0.0)
    parser.add_argument("--score", type=float, default=0.5)
    parser.add_argument("--limit", type=int, default=None, help="calls at once; more are refused with 429")
    try:
        asyncio.run(_serve(parser.parse_args()))
    except KeyboardInterrupt:
        return


if __name__ == "__main__":
    main()
