"""JSON: an array of objects, decoded element by element while the file is read.

Only the standard decoder can find the end of a value, so it decodes here. An element that is cut off at the end of the
window is decoded again after the window has grown, up to the size limit of a record.
"""

from __future__ import annotations

import codecs
import io
import json
import re
from collections.abc import Iterator
from typing import Any

import orjson

from osmosis_ai.datasets.reader import (
    BLOCK_BYTES,
    MAX_RECORD_BYTES,
    Record,
    RecordReader,
    WrittenFloat,
    may_repeat_keys,
    pass_byte_order_mark,
    repeated_keys,
    written_integer,
)

_BLANK = re.compile(r"[ \t\n\r]*")
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


class JsonArrayReader(RecordReader):
    """Yields (row number, object)."""

    unit = "row"

    def __iter__(self) -> Iterator[tuple[int, Record]]:
        return self.behind(0)

    def behind(self, rows: int) -> Iterator[tuple[int, Record]]:
        """Yield the elements after the first ``rows``; those before a known place are not read."""
        for number, value in self._elements(rows):
            record = self.admit(number, value)
            if record is not None and number > rows:
                yield number, record

    def count(self) -> int:
        """Return the number of elements."""
        return sum(1 for _ in self._elements())

    def _elements(self, passed: int = 0) -> Iterator[tuple[int, Any]]:
        """Yield (number from 1, value) of the elements after ``passed``, starting at the array's beginning or a known
        place.
        """
        with self.open() as handle:
            window = _Window(self, handle, passed)
            number = window.rows_before
            if not number:
                self._enter(window)
            character = window.next_character()
            while character != "]":
                number += 1
                element = window.take_element(number)
                if window.constant:
                    self.report(f"row {number}: not valid JSON: {window.constant} instead of null")
                else:
                    yield number, element
                character = window.next_character()
                if character == ",":
                    window.advance(1)
                    if window.next_character() != "]":
                        window.keep_place(number)
                        continue
                    self.fail(f"{window.where()}: a comma before the closing ']'")
                if character != "]":
                    found = repr(character) if character else "the end of the file"
                    self.fail(f"{window.where()}: expected ',' or ']' after row {number}, found {found}")
            window.advance(1)
            if window.next_character():
                self.fail(f"{window.where()}: text after the closing ']'")

    def _enter(self, window: _Window) -> None:
        first = window.next_character()
        if first != "[":
            self.fail(self._not_an_array(first, window.where()))
        window.advance(1)

    @staticmethod
    def _not_an_array(first: str, where: str) -> str:
        if first == "{":
            return (
                f"{where}: expected an array of objects, found an object; "
                "a file with one object a line is named .jsonl"
            )
        return f"{where}: expected an array of objects, found {repr(first) if first else 'nothing'}"


class _Window:
    """The buffered part of the file, as text, and its position in the file."""

    def __init__(self, reader: RecordReader, handle: io.BufferedReader, passed: int) -> None:
        self._reader = reader
        self._handle = handle
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self._scan = json.JSONDecoder(
            parse_float=WrittenFloat, parse_int=written_integer, parse_constant=self._note_constant
        ).raw_decode
        self._text = ""
        self._position = 0
        self.constant = ""  # NaN or an infinity in the last element; JSON has neither
        self._ended = False
        self._counted = 0  # the position that line, column and offset belong to
        self._line = 1
        self._column = 1
        self.rows_before = 0  # the number of rows before the start of reading
        self._places = reader.places(handle)
        if known := self._places.before(passed):
            reader.go_to(handle, known)
            self.rows_before, self._line, self._column = known.rows, known.line, known.column
        else:
            pass_byte_order_mark(handle)
        self._offset = handle.tell()

    def advance(self, characters: int) -> None:
        self._position += characters

    def next_character(self) -> str:
        """Skip whitespace; return the next character, or "" at the end of the file."""
        while True:
            match = _BLANK.match(self._text, self._position)
            self._position = match.end() if match else self._position
            if self._position < len(self._text):
                return self._text[self._position]
            if self._ended:
                return ""
            self._grow(BLOCK_BYTES)

    def take_element(self, number: int) -> Any:
        """Decode the element at the current position and move past it."""
        while True:
            self.constant = ""
            try:
                value, end = self._scan(self._text, self._position)
            except (ValueError, RecursionError) as error:
                if self._ended or self._held() > MAX_RECORD_BYTES:
                    self._fail(number, error)
            else:
                # Only a bare number may continue beyond the window.
                if end < len(self._text) or self._ended:
                    self._refuse_surrogates(number, end)
                    self._note_repeats(number, self._text[self._position : end], value)
                    self._position = end
                    return value
            self._grow(max(BLOCK_BYTES, self._held()))

    def _note_repeats(self, number: int, text: str, value: object) -> None:
        note = self._reader.note_repeats
        if note is not None and may_repeat_keys(text, value) and (names := repeated_keys(text)):
            note(number, names)

    def keep_place(self, rows: int) -> None:
        """Remember the current position as the place after ``rows`` rows, unless a known place is close."""
        # A character has at least one byte.
        if self._reader.columns and self._offset + self._position - self._counted >= self._places.due_at:
            self._count()
            self._places.keep(self._reader.place(rows, self._offset, self._line, self._column))

    def where(self, position: int | None = None) -> str:
        """Return "line L, column C" of a position in the window (default: the current one)."""
        line, column = self._line_and_column(self._position if position is None else position)
        return f"line {line}, column {column}"

    def _line_and_column(self, at: int) -> tuple[int, int]:
        line = self._line + self._text.count("\n", self._counted, at)
        start = self._text.rfind("\n", self._counted, at)
        return line, at - start if start >= 0 else self._column + at - self._counted

    def _count(self) -> None:
        """Update line, column and offset to the current position."""
        self._line, self._column = self._line_and_column(self._position)
        self._offset += len(self._text[self._counted : self._position].encode())
        self._counted = self._position

    def _note_constant(self, constant: str) -> None:
        self.constant = constant

    def _held(self) -> int:
        return len(self._text) - self._position

    def _refuse_surrogates(self, number: int, end: int) -> None:
        """Refuse a lone surrogate, which cannot be written as UTF-8."""
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
        """Drop the text before the current position and read ``count`` more bytes."""
        self._count()
        data = self._handle.read(count)
        self._ended = not data
        try:
            more = self._decoder.decode(data, final=self._ended)
        except UnicodeDecodeError:
            self._reader.fail_encoding()
        self._text = self._text[self._position :] + more
        self._position = self._counted = 0
