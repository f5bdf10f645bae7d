"""Token record of one rollout, the learner's only input.

A conversation is tokenised once. The prompt of a later call consists of the recorded tokens followed by new ones only,
because tokenising the text again may give other tokens than the sampled ones. The template's rendering decides
whether a call continues a recorded turn, in this order:

1. *extended*: the rendering starts with the recorded text. The remainder is new.
2. *realigned*: it does not, but the agent sent the messages it received: the template formats the turn
   differently from the model (for example spaces in a tool call's arguments). The recorded tokens are reused, and the
   tokens that the template adds after the turn are new.
3. *forked*: the agent or the template rewrote the history. The rendering is tokenised from scratch.
"""

from __future__ import annotations

import hashlib
import json
import math
from array import array
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from osmosis_ai.inference.chat import ChatFormat
from osmosis_ai.inference.engine import SampledToken
from osmosis_ai.training.objective.sequences import NOT_SAMPLED, SampledTurn, TokenSequence, merge_turns

KEPT = 256


class PromptPrefixCache:
    """The latest prompts without a recorded turn, at most :data:`KEPT` of them."""

    def __init__(self, chat: ChatFormat) -> None:
        self._chat = chat
        self._known: OrderedDict[str, tuple[str, tuple[int, ...]]] = OrderedDict()

    def read(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]
    ) -> tuple[str, tuple[int, ...]]:
        key = repr((messages, tools))  # in the order of their keys, which templates write out
        known = self._known.pop(key, None)
        if known is None:
            text = self._chat.render(messages, tools)
            known = text, tuple(self._chat.encode(text))
            while len(self._known) >= KEPT:
                self._known.popitem(last=False)
        self._known[key] = known
        return known


Messages = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class RecordedRollout:
    sequences: list[TokenSequence]
    forks: int = 0
    realigned: int = 0
    truncated: bool = False
    calls: int = 0
    sampled_tokens: int = 0

    @property
    def oldest_version(self) -> float:
        """The oldest policy that sampled one of the tokens; infinite without tokens."""
        versions = (version for sequence in self.sequences for version in sequence.versions)
        return min((version for version in versions if version != NOT_SAMPLED), default=math.inf)


@dataclass(eq=False)
class _RecordedTurn(SampledTurn):
    """A turn, and by what the next call that continues it is recognised."""

    text_length: int
    text_digest: bytes
    message_count: int
    messages_digest: bytes


@dataclass(frozen=True)
class Prompt:
    ids: tuple[int, ...]
    text: str
    given: list[int]
    parent: _RecordedTurn | None
    realigned: bool
    messages: Messages
    tools: Messages


class Recording:
    def __init__(
        self,
        rollout_id: str,
        chat: ChatFormat,
        end_tokens: frozenset[int],
        prefix_cache: PromptPrefixCache | None = None,
    ) -> None:
        self._rollout_id = rollout_id
        self._chat = chat
        self._prefix_cache = prefix_cache or PromptPrefixCache(chat)
        self._end_tokens = end_tokens
        self._end_texts = [chat.token_bytes(token).decode() for token in end_tokens]
        self._turns: list[_RecordedTurn] = []
        self._realigned = self.sampled_tokens = 0
        self.truncated = False

    def prompt(self, messages: Messages, tools: Messages) -> Prompt:
        if not self._turns:
            text, opening = self._prefix_cache.read(messages, tools)
            return Prompt(opening, text, list(opening), None, False, messages, tools)
        text = self._chat.render(messages, tools)
        turn = self._written_turn(text)
        if turn:
            given = self._chat.encode(text[turn.text_length :])
            return Prompt((*turn.ids(), *given), text, given, turn, False, messages, tools)
        for turn in self._remembered_turns(messages, tools):
            suffix = self._behind(turn, text, messages, tools)
            if suffix is not None:
                given, ids = self._chat.encode(suffix), turn.ids()
                # The policy saw its own text of the turn, not the template's.
                own = self._written(ids)
                return Prompt((*ids, *given), own + suffix, given, turn, True, messages, tools)
        ids = self._chat.encode(text)
        return Prompt(tuple(ids), text, ids, None, False, messages, tools)

    def add(self, prompt: Prompt, tokens: Sequence[SampledToken], reply: Mapping[str, Any]) -> None:
        ids = [token.id for token in tokens]
        text = prompt.text + self._written(ids)
        self._turns.append(
            _RecordedTurn(
                prompt.parent,
                array("i", prompt.given),
                array("i", ids),
                array("d", [token.logprob for token in tokens]),
                array("i", [token.version for token in tokens]),
                text_length=len(text),
                text_digest=_digest(text),
                message_count=len(prompt.messages) + 1,
                messages_digest=_messages_digest([*prompt.messages, reply], prompt.tools),
            )
        )
        self._realigned += prompt.realigned
        self.sampled_tokens += len(ids)

    def recorded(self) -> RecordedRollout:
        sequences, forks = merge_turns(self._turns, self._rollout_id)
        return RecordedRollout(
            sequences,
            forks=forks,
            realigned=self._realigned,
            truncated=self.truncated,
            calls=len(self._turns),
            sampled_tokens=self.sampled_tokens,
        )

    def _written_turn(self, text: str) -> _RecordedTurn | None:
        """The longest recorded turn that ``text`` begins with."""
        known = {turn.text_length: turn for turn in self._turns if turn.text_length < len(text)}
        for length in sorted(known, reverse=True):
            digest = _digest(text[:length])
            for turn in self._turns:
                if turn.text_length == length and turn.text_digest == digest:
                    return turn
        return None

    def _remembered_turns(self, messages: Messages, tools: Messages) -> list[_RecordedTurn]:
        """The turns whose messages are the first of ``messages``, the longest first."""
        digests = {
            count: _messages_digest(messages[:count], tools)
            for count in {turn.message_count for turn in self._turns}
            if count <= len(messages)
        }
        found = [turn for turn in self._turns if digests.get(turn.message_count) == turn.messages_digest]
        return sorted(found, key=lambda turn: turn.message_count, reverse=True)

    def _behind(self, turn: _RecordedTurn, text: str, messages: Messages, tools: Messages) -> str | None:
        """Return what the template adds after the last token of ``turn``; None if it rewrites earlier text."""
        if not self._end_texts:
            return None
        before = self._chat.render(messages[: turn.message_count], tools, add_generation_prompt=False)
        if not text.startswith(before):
            return None
        end, width = max((before.rfind(marker), len(marker)) for marker in self._end_texts)
        if end < 0 or before[end + width :].strip():
            return None  # the template does not end a turn as the model does
        ended = turn.sampled[-1] in self._end_tokens
        return text[end + width if ended else end :]

    def _written(self, ids: Sequence[int]) -> str:
        return self._chat.decoder()(ids, True)


def _digest(text: str | bytes) -> bytes:
    content = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    return hashlib.blake2b(content, digest_size=16).digest()


def _messages_digest(messages: Messages, tools: Messages) -> bytes:
    """Digest the content of messages without identifiers of calls and the spelling of arguments."""
    said = [
        [
            message["role"],
            message.get("content") or "",
            [
                [call["function"]["name"], _read_arguments(call["function"]["arguments"])]
                for call in message.get("tool_calls") or ()
            ],
        ]
        for message in messages
    ]
    try:
        return _digest(orjson.dumps([said, tools], option=orjson.OPT_SORT_KEYS))
    except TypeError:  # half of a surrogate pair, or an integer of more than 64 bits
        return _digest(json.dumps([said, tools], sort_keys=True))


def _read_arguments(arguments: str) -> Any:
    try:
        return json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments
