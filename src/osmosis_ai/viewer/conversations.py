"""An attempt with its conversation: read, shown, searched and exported."""

from __future__ import annotations

import csv
import io
import json
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, fields, replace
from itertools import chain
from typing import Any, NamedTuple

from osmosis_ai.evaluation.attempt_files import StoredConversation
from osmosis_ai.evaluation.conversation import (
    LARGEST_CONVERSATION_BYTES,
    Conversation,
    ConversationStep,
    ToolExchange,
    as_messages,
    json_text,
    prompt_of,
    read_conversation,
)
from osmosis_ai.evaluation.lenient_json import as_table, as_text
from osmosis_ai.ui import numbers
from osmosis_ai.ui.text import visible
from osmosis_ai.viewer.source import (
    ItemPage,
    RunSource,
    SampleDetail,
    SampleEntry,
    SampleQuery,
    pieces,
    sample_cursor,
)

_FROM_MODEL_CALLS = "Taken from the model calls of an agent that ended without returning a conversation. What it did after the last call is unknown."


@dataclass(frozen=True)
class ReadSample:
    run: str
    detail: SampleDetail
    stored: StoredConversation
    conversation: Conversation

    @property
    def sample(self) -> SampleEntry:
        return self.detail.summary

    @property
    def ground_truth(self) -> str | None:
        """The expected answer from the dataset, otherwise from the conversation."""
        truth = self.conversation.label if self.detail.ground_truth is None else self.detail.ground_truth
        return truth if truth is None or isinstance(truth, str) else json_text(truth, indent=2)

    @property
    def notes(self) -> str | None:
        return as_text(self.graded("notes")) or None

    @property
    def judgements(self) -> Sequence[tuple[str, str]]:
        said = self.graded("judgements")
        given = said if isinstance(said, list | tuple) else ()
        return [_judgement(each) for each in given if isinstance(each, dict)]

    @property
    def parts(self) -> Sequence[tuple[str, str]]:
        """Name and value of the reward's parts, or of the scores of an agent loop's eval functions."""
        return [
            (str(part), numbers.number(float(value)) if _is_number(value) else str(value))
            for name in ("parts", "scores", "unscored")
            if isinstance(graded := self.graded(name), Mapping)
            for part, value in graded.items()
        ]

    @property
    def problems(self) -> Sequence[str]:
        """Sentences about missing or reconstructed parts of the conversation."""
        stored = self.stored
        if stored.content is not None:
            taken = (_FROM_MODEL_CALLS,) if self.conversation.from_model_calls else ()
            return (*taken, *self.conversation.problems)
        if stored.missing is not None:
            return (stored.missing[:1].upper() + stored.missing[1:].rstrip(".") + ".",)
        size, most = numbers.size(stored.size), numbers.size(LARGEST_CONVERSATION_BYTES)
        return (f"The conversation has {size}: above {most} it is not read, {stored.whole} has it.",)

    def graded(self, name: str) -> Any:
        """Return a field of the grader's result, from the record or else from the conversation."""
        known = self.detail.record.get(name)
        return grading_of(self.conversation).get(name) if known is None else known


def as_dataset_row(conversation: Conversation) -> dict[str, Any]:
    """Return the attempt's prompt as a row of a dataset (``osmosis_ai.datasets.rows``)."""
    prompt = prompt_of(as_messages(conversation))
    row: dict[str, Any] = {}
    for role in ("system", "user"):
        texts = [str(message["content"]) for message in prompt if message["role"] == role]
        if texts:
            row[f"{role}_prompt"] = "\n\n".join(texts)
    if conversation.label is not None:
        row["ground_truth"] = conversation.label
    if conversation.metadata is not None:
        row["metadata"] = conversation.metadata
    return row


def grading_of(conversation: Conversation) -> Mapping[str, Any]:
    """Return the grader's ``notes`` and ``parts``, and the ``judgements`` of its judges."""
    extra = as_table(conversation.facts.get("sample_extra_fields"))
    judgements = as_table(extra.get("judge_calls")).get("judgements")
    return {**as_table(extra.get("grader_notes")), "judgements": judgements}


def conversation_in(stored: StoredConversation) -> Conversation:
    return read_conversation(stored.content) if stored.content is not None else Conversation()


def _judgement(said: Mapping[str, Any]) -> tuple[str, str]:
    model, score, stated = (said.get(name) for name in ("model", "score", "stated_score"))
    title = f"Judgement of {model}" if isinstance(model, str) else "Judgement"
    if _is_number(score):
        clamped = f" (clamped from {numbers.number(float(stated or 0))})" if _is_number(stated) else ""
        title += f": {numbers.number(float(score or 0))}{clamped}"
    words = said.get("explanation") or said.get("error")
    return title, words if isinstance(words, str) else ""


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


STEPS_A_PAGE = 200
LONGEST_MESSAGE = 64 << 10
"""Characters of a text shown before it is expanded."""
LONGEST_SHOWN = 2 << 20
"""Largest text on a page, in characters; longer ones are downloads."""
_PAGE = 1 << 20
"""Characters of all messages on a page; later ones are cut to :data:`_PREVIEW`."""
_PREVIEW = 2_000


class ShownText(NamedTuple):
    text: str
    left_out: int = 0


class ShownStep(NamedTuple):
    step: ConversationStep
    texts: Sequence[ShownText]
    """The reasoning, the message, then the arguments and the result of each exchange."""
    whole: bool
    cut: bool


class ShownSteps(NamedTuple):
    steps: Sequence[ShownStep]
    first: int
    total: int
    previous: int | None = None
    next: int | None = None


@dataclass
class _Room:
    left: int = _PAGE

    def take(self, text: str, most: int) -> ShownText:
        room = max(min(most, self.left), min(_PREVIEW, most))
        shown = text[:room]
        self.left -= len(shown)
        return ShownText(shown, len(text) - len(shown))


def shown_steps(conversation: Conversation, *, first: int = 1, whole: int | None = None) -> ShownSteps:
    total = len(conversation.steps)
    begin = min(max(first, 1), max(total, 1))
    begin -= (begin - 1) % STEPS_A_PAGE
    end = begin + STEPS_A_PAGE
    room = _Room()
    shown = [
        _shown(step, room, whole=step.number == whole) for step in conversation.steps[begin - 1 : end - 1]
    ]
    previous = begin - STEPS_A_PAGE if begin > 1 else None
    return ShownSteps(shown, begin, total, previous, next=end if end <= total else None)


def step_text(step: ConversationStep) -> str:
    parts = [f"{step.role}\n{step.text}"]
    if step.reasoning:
        parts.insert(0, f"reasoning\n{step.reasoning}")
    for exchange in step.exchanges:
        if exchange.call_id is not None:
            parts.append(f"call of {exchange.name}\n{_arguments(exchange)}")
        if exchange.result is not None:
            parts.append(f"result of {exchange.name or 'a tool'}\n{exchange.result}")
    return "\n\n".join(parts) + "\n"


def _shown(step: ConversationStep, room: _Room, *, whole: bool) -> ShownStep:
    if whole:
        room = _Room(max(room.left, LONGEST_SHOWN))
    most = LONGEST_SHOWN if whole else LONGEST_MESSAGE
    said = [step.reasoning, step.text]
    for exchange in step.exchanges:
        said += [_arguments(exchange) if exchange.call_id is not None else "", exchange.result or ""]
    texts = [room.take(text, most) for text in said]
    is_cut, size = any(each.left_out for each in texts), sum(map(len, said))
    return ShownStep(step, texts, whole=size <= LONGEST_SHOWN, cut=is_cut)


def _arguments(exchange: ToolExchange) -> str:
    given = exchange.arguments
    return given if isinstance(given, str) else json_text(given, indent=2)


MOST_SAMPLES = 500
MOST_BYTES = 64 * 1024 * 1024
MOST_SECONDS = 1.0
# A larger conversation is searched as raw JSON.
_MOST_PARSED_BYTES = 2 << 20


class SearchedConversations(NamedTuple):
    page: ItemPage[SampleEntry]
    looked_at: int
    too_large: int
    without: int
    first: SampleEntry | None
    last: SampleEntry | None


def search_conversations(
    source: RunSource, run: str, query: SampleQuery, *, cursor: str | None
) -> SearchedConversations:
    """Search for ``query.text`` in the conversations that match the rest of the query."""
    wanted, rest = query.text.casefold(), replace(query, text="")
    until, found = time.monotonic() + MOST_SECONDS, list[SampleEntry]()
    looked = read = too_large = without = 0
    piece = source.samples(run, rest, limit=MOST_SAMPLES, cursor=cursor)
    first = last = piece.items[0] if piece.items else None
    conversations = source.read_conversations(run, piece.items, max_bytes=LARGEST_CONVERSATION_BYTES)
    for sample, stored in zip(piece.items, conversations, strict=True):
        last = sample
        if stored.content is None and stored.size > LARGEST_CONVERSATION_BYTES:
            too_large += 1
        elif stored.content is None:
            without += 1
        else:
            looked, read = looked + 1, read + stored.size
            if contains_text(stored.content, wanted):
                found.append(sample)
        if read >= MOST_BYTES or time.monotonic() >= until:
            break
    if last is not None and last is not piece.items[-1]:
        # Files may be large, so the next scan resumes within the requested range.
        piece = replace(piece, next=sample_cursor(rest, last))
    counts = {name: count for name, count in piece.counts.items() if name != "total"}
    here = replace(piece, items=found, previous=None, counts=counts)
    return SearchedConversations(here, looked, too_large, without, first, last)


def contains_text(content: bytes, wanted: str) -> bool:
    """Whether ``wanted`` (case-folded) is in the messages or the notes of grader and judges."""
    raw = content.decode("utf-8", "replace").casefold()
    # Without escapes, a text that is not in the raw content is in no message.
    if wanted not in raw and "\\" not in raw:
        return False
    conversation = read_conversation(content) if len(content) <= _MOST_PARSED_BYTES else Conversation()
    if not conversation.steps:
        return wanted in raw
    graded = grading_of(conversation)
    said = [graded.get("notes"), graded.get("judgements")]
    for step in conversation.steps:
        said += [step.text, step.reasoning]
        said += [[each.name, each.result, each.arguments] for each in step.exchanges]
    return any(wanted in text.casefold() for text in _values(said))


def _values(value: Any) -> Iterator[str]:
    """Yield every text and number of a JSON value, without recursion because nesting may be deep."""
    pending = [value]
    while pending:
        each = pending.pop()
        if isinstance(each, dict):
            pending.extend(each.values())
        elif isinstance(each, list):
            pending.extend(each)
        elif each is not None and not isinstance(each, bool):
            yield str(each)


_AT_ONCE = 500
_COLUMNS = tuple(each.name for each in fields(SampleEntry))
# Before what a spreadsheet takes for a formula, and is no number: https://owasp.org/www-community/attacks/CSV_Injection
_FORMULA = re.compile(r"\A(?![+-]?[0-9]+(?:\.[0-9]+)?\Z)(?=[=+\-@\t\n\uff1d\uff0b\uff0d\uff20])")
MEDIA_TYPES = {"csv": "text/csv; charset=utf-8", "jsonl": "application/x-ndjson"}


def exported_samples(
    source: RunSource, run: str, query: SampleQuery, *, kind: str, in_conversations: bool = False
) -> Iterator[bytes]:
    """Yield the attempts that match a filter; errors are raised before the first."""

    def piece(cursor: str | None) -> ItemPage[SampleEntry]:
        if in_conversations:
            return search_conversations(source, run, query, cursor=cursor).page
        return source.samples(run, query, limit=_AT_ONCE, cursor=cursor)

    rest = pieces(piece)
    written = map(_csv if kind == "csv" else _jsonl, chain([next(rest)], rest))
    return chain([f"{','.join(_COLUMNS)}\r\n".encode()] if kind == "csv" else [], written)


def _csv(piece: ItemPage[SampleEntry]) -> bytes:
    lines = io.StringIO()
    csv.writer(lines).writerows(map(_cell, astuple(sample)) for sample in piece.items)
    return lines.getvalue().encode("utf-8", "replace")


def _cell(value: Any) -> Any:
    value = json.dumps(value) if isinstance(value, dict) else value
    return _FORMULA.sub("'", visible(value)) if isinstance(value, str) else value


def _jsonl(piece: ItemPage[SampleEntry]) -> bytes:
    return "".join(f"{json.dumps(asdict(sample))}\n" for sample in piece.items).encode()
