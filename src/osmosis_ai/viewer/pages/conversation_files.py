"""What an attempt left, to be taken away: its trajectory, its messages, its files. No browser runs any of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, BinaryIO

from osmosis_ai.errors import NotFoundError, OsmosisError
from osmosis_ai.evaluation.conversation import as_dataset_row, as_messages, json_text, read_conversation
from osmosis_ai.ui.policy import artifact_headers
from osmosis_ai.ui.shell import NavItem
from osmosis_ai.viewer.access import RenderedPage, Viewing
from osmosis_ai.viewer.pages.conversation import place_of, stored_conversation
from osmosis_ai.viewer.queries import Words, word
from osmosis_ai.viewer.shown_steps import step_text

if TYPE_CHECKING:
    from starlette.responses import Response

LARGEST_JSON_SHOWN = 2 << 20
"""Bytes; of more a page has the head."""
LARGEST_DOWNLOAD_BYTES = 512 << 20
_HEAD = 64 << 10
_PIECE = 1 << 20


def raw(view: Viewing, words: Words, *, run: str, item: str) -> RenderedPage | Response:
    """Return a trajectory as it lies there, on a page or as a download; or its messages, row or one step."""
    row, attempt = place_of(item)
    wanted, step = word(words, "as"), word(words, "step")
    content = _content(view, run, row, attempt)
    if step is not None:
        return _one_step(content, step, f"row_{row}_run_{attempt}_step_{step}.txt")
    if wanted == "messages":
        return _json(json_text(as_messages(read_conversation(content)), indent=2), f"row_{row}_messages.json")
    if wanted == "row":
        return _json(json_text(as_dataset_row(read_conversation(content))) + "\n", f"row_{row}.jsonl")
    if wanted == "file":
        return _download(content, f"row_{row}_run_{attempt}.json", "application/json")
    if wanted is not None:
        raise OsmosisError(f"'as' is one of messages, row, file, and not {wanted!r}.")
    is_head = len(content) > LARGEST_JSON_SHOWN
    here = view.sample_href(run, row, attempt)
    return RenderedPage(
        "conversation_raw.html",
        {
            "title": f"Row {row}, attempt {attempt} of {run}, as JSON",
            "crumbs": [
                *view.crumbs("training" if view.of_validation else "eval", run),
                NavItem(f"Row {row}, attempt {attempt}", here),
            ],
            "here": here,
            "text": content[: _HEAD if is_head else None].decode("utf-8", "replace"),
            "size": len(content),
            "is_head": is_head,
        },
    )


def raw_of_validation(view: Viewing, words: Words, *, run: str, item: str) -> RenderedPage | Response:
    """Return the same of a training run's newest validation."""
    return raw(replace(view, of_validation=True), words, run=run, item=item)


def artifact(view: Viewing, _words: Words, *, run: str, item: str, path: str) -> Response:
    """Return a file that an attempt left, in pieces."""
    from starlette.responses import StreamingResponse

    row, attempt = place_of(item)
    listed = view.source.artifacts(run, row, attempt) if view.can("artifacts") else ()
    file = next((each for each in listed if each.path == path), None)
    none = NotFoundError(f"attempt {attempt} on row {row} of {run!r} left no file {path[:200]!r}.")
    if file is None:
        raise none
    try:
        handle = view.source.open_artifact(run, row, attempt, path)
    except OsmosisError as error:
        if error.code == "NOT_FOUND":  # it was deleted since, in a store of blobs, too
            raise none from None
        raise
    return StreamingResponse(
        _pieces(handle),
        headers=artifact_headers(path.rpartition("/")[2]),
        media_type="application/octet-stream",
    )


def _pieces(handle: BinaryIO) -> Iterator[bytes]:
    with handle:
        while piece := handle.read(_PIECE):
            yield piece


def _content(view: Viewing, run: str, row: int, attempt: int) -> bytes:
    if not view.can("conversations"):
        raise NotFoundError("conversations are not kept here.")
    stored = stored_conversation(view, run, row, attempt, max_bytes=LARGEST_DOWNLOAD_BYTES)
    if stored.content is None:
        why = stored.missing or f"the conversation has more than {LARGEST_DOWNLOAD_BYTES >> 20} MB."
        raise NotFoundError(why)
    return stored.content


def _one_step(content: bytes, number: str, name: str) -> Response:
    steps = read_conversation(content).steps
    if not (number.isascii() and number.isdigit()) or not 1 <= int(number[:9]) <= len(steps):
        raise NotFoundError(f"the conversation has {len(steps)} steps, and no {number[:20]!r}.")
    return _download(step_text(steps[int(number) - 1]).encode("utf-8", "replace"), name, "text/plain")


def _json(text: str, name: str) -> Response:
    return _download(text.encode("utf-8", "replace"), name, "application/json")


def _download(content: bytes, name: str, media_type: str) -> Response:
    from starlette.responses import Response

    return Response(content, headers=artifact_headers(name), media_type=media_type)
