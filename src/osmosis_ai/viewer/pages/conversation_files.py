"""What an attempt left, to be taken away: its trajectory, its messages, its files. No browser runs any of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import BinaryIO

from starlette.responses import Response, StreamingResponse

from osmosis_ai.errors import NotFoundError, OsmosisError
from osmosis_ai.evaluation.attempt_files import StoredConversation
from osmosis_ai.evaluation.conversation import (
    LARGEST_CONVERSATION_BYTES,
    as_messages,
    json_text,
    read_conversation,
)
from osmosis_ai.ui.policy import artifact_headers
from osmosis_ai.ui.shell import NavItem
from osmosis_ai.viewer.access import RenderedPage, Viewing
from osmosis_ai.viewer.pages.conversation import place_of, stored_conversation
from osmosis_ai.viewer.queries import Words, choice_of, word
from osmosis_ai.viewer.read_sample import as_dataset_row
from osmosis_ai.viewer.shown_steps import step_text

LARGEST_JSON_SHOWN = 2 << 20
"""Bytes; of more a page has the head."""
_HEAD = 64 << 10
_PIECE = 1 << 20


def raw(view: Viewing, words: Words, *, run: str, item: str) -> RenderedPage | Response:
    """Return a trajectory as it lies there, on a page or as a download; or its messages, row or one step."""
    row, attempt = place_of(item)
    wanted, step = choice_of(words, "as", ("messages", "row", "file")), word(words, "step")
    if step is not None:
        return _one_step(_read(view, run, row, attempt), step, f"row_{row}_run_{attempt}_step_{step}.txt")
    if wanted is None:
        return _shown(view, run, row, attempt)
    if wanted == "file":
        stored = _stored(view, run, row, attempt, max_bytes=_PIECE)
        whole = _opened(stored) if stored.content is None else stored.content
        return _download(whole, f"row_{row}_run_{attempt}.json")
    said = read_conversation(_read(view, run, row, attempt))
    if wanted == "messages":
        return _download(json_text(as_messages(said), indent=2), f"row_{row}_messages.json")
    return _download(json_text(as_dataset_row(said)) + "\n", f"row_{row}.jsonl")


def _shown(view: Viewing, run: str, row: int, attempt: int) -> RenderedPage:
    """Return the page of a trajectory as it lies there, or of its head."""
    stored = _stored(view, run, row, attempt, max_bytes=LARGEST_JSON_SHOWN)
    content = stored.content
    if content is None:
        with _opened(stored) as file:
            content = file.read(_HEAD)
    here = view.sample_href(run, row, attempt)
    return RenderedPage(
        "conversation_raw.html",
        {
            "title": f"Row {row}, attempt {attempt} of {run}, as JSON",
            "crumbs": [*view.crumbs(view.sampled, run), NavItem(f"Row {row}, attempt {attempt}", here)],
            "here": here,
            "text": content.decode("utf-8", "replace"),
            "size": stored.size,
            "is_head": stored.content is None,
        },
        live=view.live(view.sampled, run),
    )


def artifact(view: Viewing, _words: Words, *, run: str, item: str, path: str) -> Response:
    """Return a file that an attempt left, in pieces."""
    row, attempt = place_of(item)
    listed = view.source.artifacts(run, row, attempt) if view.can("artifacts") else ()
    none = NotFoundError(f"attempt {attempt} on row {row} of {run!r} left no file {path[:200]!r}.")
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


def _stored(view: Viewing, run: str, row: int, attempt: int, *, max_bytes: int) -> StoredConversation:
    if not view.can("conversations"):
        raise NotFoundError("conversations are not kept here.")
    stored = stored_conversation(view, run, row, attempt, max_bytes=max_bytes)
    if stored.missing is not None:
        raise stored.away or NotFoundError(stored.missing)
    return stored


def _opened(stored: StoredConversation) -> BinaryIO:
    with suppress(OSError):  # it was deleted since
        if stored.open is not None:
            return stored.open()
    raise NotFoundError("the conversation is not there any more.")


def _read(view: Viewing, run: str, row: int, attempt: int) -> bytes:
    stored = _stored(view, run, row, attempt, max_bytes=LARGEST_CONVERSATION_BYTES)
    if stored.content is None:
        most = LARGEST_CONVERSATION_BYTES >> 20
        raise NotFoundError(
            f"the conversation has more than {most} MB: it can be downloaded, and is not read."
        )
    return stored.content


def _one_step(content: bytes, number: str, name: str) -> Response:
    steps = read_conversation(content).steps
    if not (number.isascii() and number.isdigit() and len(number) < 10 and 1 <= int(number) <= len(steps)):
        raise NotFoundError(f"the conversation has {len(steps)} steps, and no {number[:20]!r}.")
    return _download(step_text(steps[int(number) - 1]), name, "text/plain")


def _download(content: str | bytes | BinaryIO, name: str, media_type: str = "application/json") -> Response:
    """Return what is taken away under a name; of an open file a piece at a time."""
    headers = artifact_headers(name)
    if isinstance(content, (str, bytes)):
        whole = content.encode("utf-8", "replace") if isinstance(content, str) else content
        return Response(whole, headers=headers, media_type=media_type)
    return StreamingResponse(_pieces(content), headers=headers, media_type=media_type)
