"""An artifact of a rollout without the run's secrets: however large it is, and however long its lines, little of it is in memory."""

from __future__ import annotations

import codecs
import json
import os
import tempfile
from collections.abc import Iterator
from typing import IO, BinaryIO, cast

from osmosis_ai.redaction import Redactor

_IN_MEMORY_BYTES = 1024 * 1024
_LARGEST_DOCUMENT_BYTES = 8 * 1024 * 1024
"""More is no document of JSON here, and a line of more no line: it is read piece by piece, as text."""
_PIECE_BYTES = 1024 * 1024


def clean_artifact(raw: BinaryIO, redactor: Redactor) -> BinaryIO:
    """Return an artifact without secrets, in a file to be closed; a document of JSON stays one."""
    clean: IO[bytes] = tempfile.SpooledTemporaryFile(  # noqa: SIM115 - the caller closes it
        max_size=_IN_MEMORY_BYTES
    )
    if not _copy_clean_json(raw, clean, redactor):
        while line := raw.readline(_LARGEST_DOCUMENT_BYTES):
            if len(line) < _LARGEST_DOCUMENT_BYTES or line.endswith(b"\n"):
                clean.write(_clean_line(line, redactor))
            else:
                # One by one: all lines of a `writelines` are in memory before any is on the disk.
                for piece in _clean_pieces(line, raw, redactor):
                    clean.write(piece)
    clean.seek(0)
    return cast(BinaryIO, clean)


def _copy_clean_json(raw: BinaryIO, clean: IO[bytes], redactor: Redactor) -> bool:
    """Copy an artifact that is one JSON value; return False, having copied nothing, when it is none."""
    if os.fstat(raw.fileno()).st_size > _LARGEST_DOCUMENT_BYTES:
        return False
    document = _clean_document(raw.read(), redactor)
    if document is None:
        raw.seek(0)
        return False
    clean.write(document)
    return True


def _clean_line(line: bytes, redactor: Redactor) -> bytes:
    """Return a line of an artifact: of JSON, which it stays (``.jsonl``), or of text."""
    if line[:1] in b"{[" and (document := _clean_document(line, redactor)) is not None:
        return document if document.endswith(b"\n") or not line.endswith(b"\n") else document + b"\n"
    return redactor.text(line.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")


def _clean_pieces(beginning: bytes, raw: BinaryIO, redactor: Redactor) -> Iterator[bytes]:
    """Yield the rest of a line that is too long to be read whole, which is text: ``beginning``, and what follows in ``raw``."""

    def texts() -> Iterator[str]:
        decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")
        for start in range(0, len(beginning), _PIECE_BYTES):
            yield decoder.decode(beginning[start : start + _PIECE_BYTES])
        while (piece := raw.readline(_PIECE_BYTES)) and not piece.endswith(b"\n"):
            yield decoder.decode(piece)
        yield decoder.decode(piece, final=True)

    for text in redactor.in_pieces(texts()):
        yield text.encode("utf-8", "surrogateescape")


def _clean_document(content: bytes, redactor: Redactor) -> bytes | None:
    """Return a JSON value without secrets, byte for byte as it was where it has none; None when it is no JSON."""
    try:
        document = json.loads(content)
        clean = redactor.tree(document)
    except (ValueError, RecursionError):
        return None
    # Compared as written: NaN equals nothing, and 1 equals true.
    return content if repr(clean) == repr(document) else json.dumps(clean).encode()
