"""Redacts an artifact of a rollout; however large it is, and however long its lines, little of it is in memory."""

from __future__ import annotations

import codecs
import json
import os
import tempfile
from collections.abc import Iterator
from typing import IO

from osmosis_ai.redaction import Redactor

_LARGEST_DOCUMENT_BYTES = 8 << 20
"""Larger content is not read as one JSON document or line, but piece by piece, as text."""
_PIECE_BYTES = 1 << 20


def clean_artifact(raw: IO[bytes], redactor: Redactor) -> IO[bytes]:
    """Return an artifact without secrets, in a file to be closed; a document of JSON stays one."""
    clean = tempfile.SpooledTemporaryFile(max_size=_PIECE_BYTES)  # noqa: SIM115 - the caller closes it
    document = None
    if os.fstat(raw.fileno()).st_size <= _LARGEST_DOCUMENT_BYTES:
        document = _clean_document(raw.read(), redactor)
        raw.seek(0)
    for piece in _clean_lines(raw, redactor) if document is None else [document]:
        clean.write(piece)
    clean.seek(0)
    return clean


def _clean_lines(raw: IO[bytes], redactor: Redactor) -> Iterator[bytes]:
    while line := raw.readline(_LARGEST_DOCUMENT_BYTES):
        if len(line) == _LARGEST_DOCUMENT_BYTES and not line.endswith(b"\n"):
            for text in redactor.in_pieces(_texts_of_line(line, raw)):
                yield text.encode("utf-8", "surrogateescape")
        elif line[:1] in b"{[" and (document := _clean_document(line, redactor)) is not None:
            # A line of JSON stays one (``.jsonl``).
            yield document.rstrip(b"\n") + line[len(line.rstrip(b"\n")) :]
        else:
            text = redactor.text(line.decode("utf-8", "surrogateescape"))
            yield text.encode("utf-8", "surrogateescape")


def _texts_of_line(beginning: bytes, raw: IO[bytes]) -> Iterator[str]:
    """Yield the text of a long line: its beginning, and its rest in ``raw``."""
    decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")
    for start in range(0, len(beginning), _PIECE_BYTES):
        yield decoder.decode(beginning[start : start + _PIECE_BYTES])
    while (piece := raw.readline(_PIECE_BYTES)) and not piece.endswith(b"\n"):
        yield decoder.decode(piece)
    yield decoder.decode(piece, final=True)


def _clean_document(content: bytes, redactor: Redactor) -> bytes | None:
    """Return a JSON value without secrets, byte for byte unchanged if it has none; None if it is not JSON."""
    try:
        document = json.loads(content)
        clean = redactor.tree(document)
    except (ValueError, RecursionError):
        return None
    # Compared as written: NaN equals nothing, and 1 equals true.
    return content if repr(clean) == repr(document) else json.dumps(clean).encode()
