"""The page of an attempt, and its downloads."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import zip_longest
from typing import BinaryIO

from starlette.responses import Response, StreamingResponse

from osmosis_ai.errors import NotFoundError, OsmosisError
from osmosis_ai.evaluation.attempt_files import StoredConversation
from osmosis_ai.evaluation.conversation import (
    LARGEST_CONVERSATION_BYTES,
    Conversation,
    as_messages,
    call_timing,
    json_text,
    read_conversation,
)
from osmosis_ai.evaluation.lenient_json import as_objects, as_table
from osmosis_ai.ui.charts import TimeSpan, waterfall
from osmosis_ai.ui.numbers import amount
from osmosis_ai.ui.pages import NavItem, artifact_headers
from osmosis_ai.ui.text import unseen_in_json
from osmosis_ai.viewer import conversations, queries
from osmosis_ai.viewer.access import RenderedPage, Viewing
from osmosis_ai.viewer.local_runs import RunKind
from osmosis_ai.viewer.queries import Words, choice_of, word
from osmosis_ai.viewer.source import RunEntry, SampleEntry, SampleQuery, validated_sample

HIDEABLE = ("system", "tools", "reasoning")
WORDS = ("show", "from", "with", "text", "hide", "elsewhere")
"""Query parameters besides those of the attempt's list."""
_ITEM = re.compile(r"(\d{1,999})\.(\d{1,999})", re.ASCII)
_STEP = re.compile(r"\d{1,9}", re.ASCII)
_ELSEWHERE = 20
_COPIED = 16 << 10
"""Largest text to copy, in characters; longer ones are downloads only."""


@dataclass(frozen=True)
class ViewedSample(conversations.ReadSample):
    href: str
    shown: conversations.ShownSteps
    anchor: str = "step"


def page(view: Viewing, words: Words, *, run: str, item: str, kind: RunKind = "eval") -> RenderedPage:
    query, (row, attempt) = queries.sample_query(words), place_of(item)
    whole, beside, other = queries.whole_number(words, "show"), word(words, "with"), None
    first = queries.whole_number(words, "from") or whole or 1
    one = viewed(view, run, row, attempt, query, kind=kind, first=first, whole=whole)
    if beside is not None:  # ``row.attempt`` of this run, or ``RUN/row.attempt``
        named, slash, second = beside.rpartition("/")
        another = named if slash else run
        place = place_of(second)
        other = viewed(view, another, *place, kind=kind, first=first, whole=whole, anchor="other")
    hidden = queries.choices_of(words, "hide", HIDEABLE)
    written = queries.choice_of(words, "text", ("markdown",))
    kept = queries.kept_words(words, queries.SAMPLE_WORDS)
    state = kept | {"text": written or "", "with": beside or ""}
    near = queries.query_string(kept, text=state["text"], hide=hidden)
    if kind == "training":
        above = NavItem("Validation", view.run_href("training", run) + "#validation")
    else:
        above = NavItem("Attempts", view.run_href("eval", run, "samples") + queries.query_string(kept))
    return RenderedPage(
        "conversation.html",
        {
            "title": f"Row {row}, attempt {attempt} of {run}",
            "crumbs": [*view.crumbs(kind, run), above],
            "one": one,
            "other": other,
            "pairs": list(zip_longest(one.shown.steps, other.shown.steps if other else ())),
            "kept": state,
            "hidden": hidden,
            "as_markdown": written is not None,
            "to": lambda row, attempt: view.sample_href(run, row, attempt, kind) + near,
            "elsewhere": () if kind == "training" else _elsewhere(view, run, one.sample, words),
            "artifacts": () if kind == "training" else view.source.artifacts(run, row, attempt),
            "copies": _copies(one.conversation),
            "most_copied": _COPIED,
            "waterfalls": [
                (each, waterfall(spans, label="When the model was called"))
                for each in (one, other)
                if each and (spans := time_spans(each.conversation))
            ],
            "of_validation": kind == "training",
            "address": lambda **more: one.href + queries.query_string(state | more, hide=hidden),
        },
    )


def place_of(item: str) -> tuple[int, int]:
    match = _ITEM.fullmatch(item)
    if match is None:
        raise NotFoundError(f"an attempt is named ROW.ATTEMPT, such as 12.0, not {item[:40]!r}.")
    return int(match[1]), int(match[2])


def viewed(
    view: Viewing,
    run: str,
    row: int,
    attempt: int,
    query: SampleQuery | None = None,
    *,
    kind: RunKind = "eval",
    first: int = 1,
    whole: int | None = None,
    anchor: str = "step",
) -> ViewedSample:
    source = view.source
    if kind == "training":
        detail = validated_sample(source.validation(run), run, row, attempt)
    else:
        detail = source.sample(run, row, attempt, query or SampleQuery())
    stored = source.conversation(run, row, attempt, max_bytes=LARGEST_CONVERSATION_BYTES, kind=kind)
    conversation, href = conversations.conversation_in(stored), view.sample_href(run, row, attempt, kind)
    shown = conversations.shown_steps(conversation, first=first, whole=whole)
    return ViewedSample(run, detail, stored, conversation, href, shown, anchor)


def _elsewhere(
    view: Viewing, run: str, sample: SampleEntry, words: Words
) -> Sequence[tuple[RunEntry, SampleEntry]] | None:
    """Return the same row in other runs; None if it takes long and was not requested."""
    if view.is_local and word(words, "elsewhere") is None:
        return None
    if sample.row_digest is None:
        return ()
    found = view.source.elsewhere(sample.row_digest, limit=_ELSEWHERE)
    return [(entry, each) for entry, each in found if entry.name != run]


def time_spans(conversation: Conversation) -> list[TimeSpan]:
    """Return the model calls and the time between them; empty if no times were recorded."""
    timed = [(step.started_at, step.duration_ms, f"message {step.number}") for step in conversation.steps]
    if not any(started_at for started_at, *_ in timed):
        unmatched = as_objects(conversation.facts.get("unmatched_llm_call_metrics"))
        timed = [(*call_timing(as_table(call.get("extra"))), "model") for call in unmatched]
    calls = sorted((at, lasts, name) for at, lasts, name in timed if at is not None and lasts is not None)
    spans: list[TimeSpan] = []
    end = 0.0
    for started_at, duration_ms, name in calls:
        start = (started_at - calls[0][0]).total_seconds() * 1000
        if start > end:
            spans.append(TimeSpan("agent and tools", "agent and tools", end, start - end))
        spans.append(TimeSpan(name, "model", start, duration_ms))
        end = max(end, start + duration_ms)
    return spans


def _copies(said: Conversation) -> Mapping[str, str]:
    """Return the texts to download by name; on a page, invisible characters would be marks."""
    taken = {"messages": as_messages(said), "row": conversations.as_dataset_row(said)} if said.steps else {}
    return {word: json_text(what).translate(unseen_in_json()) for word, what in taken.items()}


LARGEST_JSON_SHOWN = 2 << 20
"""Bytes of a trajectory on a page."""
_HEAD = 64 << 10
_PIECE = 1 << 20


def raw(
    view: Viewing, words: Words, *, run: str, item: str, kind: RunKind = "eval"
) -> RenderedPage | Response:
    """Return a trajectory as a page or download; or its messages, row or one step."""
    row, attempt = place_of(item)
    wanted, step = choice_of(words, "as", ("messages", "row", "file")), word(words, "step")
    is_read = step is not None or wanted in ("messages", "row")
    most = LARGEST_CONVERSATION_BYTES if is_read else _PIECE if wanted else LARGEST_JSON_SHOWN
    stored = view.source.conversation(run, row, attempt, max_bytes=most, kind=kind)
    if stored.missing is not None:
        raise stored.away or NotFoundError(stored.missing)
    if not is_read and wanted is None:
        content = stored.content
        if content is None:
            with _opened(stored) as file:
                content = file.read(_HEAD)
        here = view.sample_href(run, row, attempt, kind)
        values = {
            "title": f"Row {row}, attempt {attempt} of {run}, as JSON",
            "crumbs": [*view.crumbs(kind, run), NavItem(f"Row {row}, attempt {attempt}", here)],
            "here": here,
            "text": content.decode("utf-8", "replace"),
            "size": stored.size,
            "is_head": stored.content is None,
        }
        return RenderedPage("conversation_raw.html", values)
    if not is_read:
        whole = _opened(stored) if stored.content is None else stored.content
        return _download(whole, f"row_{row}_run_{attempt}.json")
    if stored.content is None:
        raise NotFoundError(
            f"the conversation is larger than {most >> 20} MiB; only its file can be downloaded."
        )
    said = read_conversation(stored.content)
    if step is not None:
        if _STEP.fullmatch(step) is None or not 1 <= int(step) <= len(said.steps):
            raise NotFoundError(
                f"the conversation has {amount(len(said.steps), 'step')}; {step[:20]!r} is not one of them."
            )
        name = f"row_{row}_run_{attempt}_step_{step}.txt"
        return _download(conversations.step_text(said.steps[int(step) - 1]), name, "text/plain")
    if wanted == "messages":
        return _download(json_text(as_messages(said), indent=2), f"row_{row}_messages.json")
    return _download(json_text(conversations.as_dataset_row(said)) + "\n", f"row_{row}.jsonl")


def artifact(view: Viewing, _words: Words, *, run: str, item: str, path: str) -> Response:
    row, attempt = place_of(item)
    listed = view.source.artifacts(run, row, attempt)
    none = NotFoundError(f"attempt {attempt} on row {row} of {run!r} has no file {path[:200]!r}.")
    if path not in {each.path for each in listed}:
        raise none
    try:
        handle = view.source.open_artifact(run, row, attempt, path)
    except OsmosisError as error:
        if error.code == "NOT_FOUND":  # it was deleted since, in a store of blobs, too
            raise none from None
        raise
    return _download(handle, path.rpartition("/")[2], "application/octet-stream")


def _pieces(handle: BinaryIO) -> Iterator[bytes]:
    with handle:
        while piece := handle.read(_PIECE):
            yield piece


def _opened(stored: StoredConversation) -> BinaryIO:
    with suppress(OSError):  # it was deleted since
        if stored.open is not None:
            return stored.open()
    raise NotFoundError("the conversation is not there any more.")


def _download(content: str | bytes | BinaryIO, name: str, media_type: str = "application/json") -> Response:
    headers = artifact_headers(name)
    if isinstance(content, (str, bytes)):
        whole = content.encode("utf-8", "replace") if isinstance(content, str) else content
        return Response(whole, headers=headers, media_type=media_type)
    return StreamingResponse(_pieces(content), headers=headers, media_type=media_type)
