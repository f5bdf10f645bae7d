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

Use ``async with JudgeServer()``, or ``with running_judge()`` for a command that has its own event loop.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from aiohttp import web

from tests.rubric.serving import serving
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
        latency_s: how long every reply takes, in seconds.

    Attributes:
        broken: when set, every call is answered with this HTTP status.
        limit: calls at once; further ones are refused with 429.
    """

    def __init__(self, *, score: float = 0.5, latency_s: float = 0.0) -> None:
        super().__init__(self._judge, latency_s=latency_s)
        self._score = score
        self._seen: Counter[str] = Counter()
        self.broken: int | None = None
        self.limit: int | None = None
        self.key_seen = ""

    async def _chat_completions(self, request: web.Request) -> web.StreamResponse:
        self.key_seen = request.headers.get("Authorization", "").removeprefix("Bearer ")
        return await super()._chat_completions(request)

    def _judge(self, body: dict[str, Any]) -> Reply:
        text = candidate_of(body)
        self._seen[text] += 1
        if self.broken is not None:
            return error_reply(self.broken, "The judge is out of order.")
        if self.limit is not None and self.in_flight >= self.limit:
            return error_reply(429, "Too many requests.", retry_after="0.05")
        again = len(body["messages"]) > 2 or self._seen[text] > 1
        words = [found.split(" ") for found in _DIRECTIVE.findall(text)]
        for name, *rest in words:
            if name == "once":
                if again:
                    continue
                name, *rest = rest
            reply = self._misbehave(name, rest)
            if reply is not None:
                return reply
        score = self._scored(text, words, str(body.get("model"))) + _of_place(words, body)
        return Reply(json.dumps({"score": score, "explanation": "It follows the rubric."}))

    def _misbehave(self, name: str, rest: list[str]) -> Reply | None:
        if name == "status":
            return error_reply(int(rest[0]), f"The judge answers {rest[0]}.", retry_after="0.05")
        if name == "echo":
            return error_reply(400, f"Bad request with the key {self.key_seen}.")
        content = {
            "garbage": "I would rather talk about the weather.",
            "prose": 'Let me think. {"score": 0.25, "explanation": "fine"} That is all.',
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
                place = f"{model}:{self._seen[text]}:{text}"
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
def running_judge() -> Iterator[JudgeServer]:
    """Run a judge in a thread of its own."""
    judge = JudgeServer()
    with serving(judge):
        yield judge
