"""JSON: one array of objects, decoded element by element as the file streams in.

Only the standard decoder tells where a value ends, so it does the decoding here. An element cut
off by the end of the window is tried again once the window has grown, up to the size limit of one
record.
"""

from __future__ import annotations

import codecs
import json
import math
import re
from collections.abc import Iterator
from typing import Any, NoReturn

import orjson

from osmosis_ai.datasets.reader import (
    BLOCK_BYTES,
    MAX_RECORD_BYTES,
    Record,
    RecordReader,
)

_BLANK = re.compile(r"[ \t\n\r]*")
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


class JsonArrayReader(RecordReader):
    """Yields (row number, object)."""

    unit = "row"

    def __iter__(self) -> Iterator[tuple[int, Record]]:
        for number, value in self._elements():
            record = self.admit(number, value)
            if record is not None:
                yield number, record

    def count(self) -> int:
        """Return how many elements the array has."""
        return sum(1 for _ in self._elements())

    def _elements(self) -> Iterator[tuple[int, Any]]:
        """Yield (number from 1, value) of each element of the array."""
        with _Window(self) as window:
            first = window.next_character()
            if first != "[":
                self.fail(self._not_an_array(first, window.where()))
            window.advance(1)
            number = 0
            character = window.next_character()
            while character != "]":
                number += 1
                yield number, window.take_element(number)
                character = window.next_character()
                if character == ",":
                    window.advance(1)
                    if window.next_character() != "]":
                        continue
                    self.fail(f"{window.where()}: a comma before the closing ']'")
                if character != "]":
                    found = repr(character) if character else "the end of the file"
                    self.fail(f"{window.where()}: expected ',' or ']' after row {number}, found {found}")
            window.advance(1)
            if window.next_character():
                self.fail(f"{window.where()}: text after the closing ']'")

    @staticmethod
    def _not_an_array(first: str, where: str) -> str:
        if first == "{":
            return (
                f"{where}: expected an array of objects, found an object; "
                "a file with one object a line is named .jsonl"
            )
        return f"{where}: expected an array of objects, found {repr(first) if first else 'nothing'}"


def _finite(digits: str) -> float:
    number = float(digits)
    if math.isinf(number):
        raise ValueError(f"the number {digits[:20]} is too large")
    return number


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON value")


class _Window:
    """The part of the file being looked at, as text, and where it stands in the file."""

    def __init__(self, reader: RecordReader) -> None:
        self._reader = reader
        self._handle = reader.open()
        self._decoder = codecs.getincrementaldecoder("utf-8-sig")()
        self._scan = json.JSONDecoder(parse_float=_finite, parse_constant=_refuse).raw_decode
        self._text = ""
        self._position = 0
        self._ended = False
        self._line = 1  # of the window's first character
        self._column = 1

    def __enter__(self) -> _Window:
        return self

    def __exit__(self, *_: object) -> None:
        self._handle.close()

    def advance(self, characters: int) -> None:
        self._position += characters

    def next_character(self) -> str:
        """Skip blanks; return the character that follows, or "" at the end of the file."""
        while True:
            match = _BLANK.match(self._text, self._position)
            self._position = match.end() if match else self._position
            if self._position < len(self._text):
                return self._text[self._position]
            if self._ended:
                return ""
            self._grow(BLOCK_BYTES)

    def take_element(self, number: int) -> Any:
        """Decode the element that starts here and step behind it."""
        while True:
            try:
                value, end = self._scan(self._text, self._position)
            except (ValueError, RecursionError) as error:
                if self._ended or self._held() > MAX_RECORD_BYTES:
                    self._fail(number, error)
            else:
                # A bare number may go on in what has not been read; nothing else can.
                if end < len(self._text) or self._ended:
                    self._refuse_surrogates(number, end)
                    self._position = end
                    return value
            self._grow(max(BLOCK_BYTES, self._held()))

    def where(self, position: int | None = None) -> str:
        """Return "line L, column C" of a position in the window, by default the current one."""
        at = self._position if position is None else position
        line = self._line + self._text.count("\n", 0, at)
        start = self._text.rfind("\n", 0, at)
        column = at - start if start >= 0 else self._column + at
        return f"line {line}, column {column}"

    def _held(self) -> int:
        return len(self._text) - self._position

    def _refuse_surrogates(self, number: int, end: int) -> None:
        """Refuse half a character, which could never be written as UTF-8 again."""
        escape = self._text.find("\\u", self._position, end)
        if escape < 0 or not _SURROGATE.search(self._text, escape, end):
            return
        try:
            orjson.loads(self._text[self._position : end])
        except ValueError as error:
            self._reader.fail(
                f"{self.where()}: not valid JSON: {getattr(error, 'msg', error)} (in row {number})"
            )

    def _fail(self, number: int, error: Exception) -> None:
        if isinstance(error, json.JSONDecodeError):
            cut_off = error.pos >= len(self._text) - 1 or error.msg.startswith("Unterminated")
            if cut_off and not self._ended:
                self._reader.fail_too_long(number)
            self._reader.fail(f"{self.where(error.pos)}: not valid JSON: {error.msg} (in row {number})")
        if isinstance(error, RecursionError):
            self._reader.fail(f"{self.where()}: row {number} is nested too deeply")
        self._reader.fail(f"{self.where()}: not valid JSON: {error} (in row {number})")

    def _grow(self, count: int) -> None:
        """Drop what has been passed and read ``count`` more bytes."""
        passed = self._text[: self._position]
        lines = passed.count("\n")
        self._line += lines
        self._column = len(passed) - passed.rfind("\n") if lines else self._column + len(passed)
        data = self._handle.read(count)
        self._ended = not data
        try:
            more = self._decoder.decode(data, final=self._ended)
        except UnicodeDecodeError:
            self._reader.fail_encoding()
        self._text = self._text[self._position :] + more
        self._position = 0
