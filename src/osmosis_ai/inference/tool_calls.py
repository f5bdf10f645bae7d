"""Streaming parser for tool calls in a model's output.

The reader takes text in pieces of any size and returns it in order, split into content and calls. No text is lost or
repeated, and the result does not depend on the pieces. Text that may become a call is buffered. An invalid call stays
content as written. The formats are in ``tool_call_formats``.
"""

from __future__ import annotations

import logging
import re
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

FormatName = Literal["hermes", "qwen3_coder", "mistral", "deepseek", "llama3_json", "pythonic"]
FORMAT_NAMES: tuple[FormatName, ...] = get_args(FormatName)

# A held text is read again with every piece while it is short, then only when it may have become whole.
_SHORT = 256

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ParsedToolCall:
    """A call the model made."""

    id: str
    name: str
    arguments: str

    def to_dict(self) -> dict[str, Any]:
        """Return the call in OpenAI's shape."""
        function = {"name": self.name, "arguments": self.arguments}
        return {"id": self.id, "type": "function", "function": function}


Piece = str | ParsedToolCall
# The JSON schemas of the parameters of each offered function, by their names.
ToolSchemas = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Markup:
    """A stretch of a reply that is no content: calls, and the marks and blanks around them."""

    text: str
    calls: tuple[ParsedToolCall, ...] = ()


class NotACallError(Exception):
    """Whatever follows, the text does not begin with a call."""


class MoreToComeError(Exception):
    """The text may be the beginning of a call."""


@dataclass(frozen=True)
class CallFormat:
    """How a family of models writes calls."""

    name: FormatName
    openings: tuple[str, ...]
    read: Callable[[str, ToolSchemas], tuple[int, list[ParsedToolCall]]]
    enders: str
    closings: tuple[str, ...] = ()
    bare: str = ""
    call_end: str | None = None
    new_id: Callable[[], str] = lambda: f"call_{uuid.uuid4().hex[:24]}"


class ToolCallReader:
    """Reads one reply.

    Args:
        format: The model's tool call format.
        tools: The offered tools, in OpenAI format.
        at_most_one: Treat text after the first call as content.
    """

    def __init__(
        self, format: CallFormat, tools: Sequence[Mapping[str, Any]] = (), *, at_most_one: bool = False
    ) -> None:
        self._format = format
        self._schemas = {tool["function"]["name"]: _properties(tool["function"]) for tool in tools}
        self._at_most_one = at_most_one
        self._bare = re.compile(rf"(?m)^[^\S\n]*{re.escape(format.bare)}") if format.bare else None
        self._held = ""
        self._waiting = False
        self._behind_call = False
        self._at_line_start = True
        self._ids: set[str] = set()

    def feed(self, text: str) -> Iterator[Piece]:
        """Yield content and calls as soon as they are certain."""
        return _pieces(self.stretches(text))

    def finish(self) -> Iterator[Piece]:
        """Yield the buffered text at the end of the reply."""
        return _pieces(self.stretches("", ended=True))

    def stretches(self, text: str, *, ended: bool = False) -> Iterator[str | Markup]:
        """Yield content and markup; all their text together is all that was given, once it has ended."""
        self._held += text
        if (
            self._waiting
            and not ended
            and len(self._held) > _SHORT
            and not set(text) & set(self._format.enders)
        ):
            return
        self._waiting = False
        while self._held:
            start = self._opening_in(self._held)
            # Blanks behind a call may be what separates it from the next: wait for what follows.
            blanks = start if self._behind_call and not self._held[:start].strip() else 0
            if start > blanks:
                yield self._content(start)
            elif start == len(self._held):
                if ended:
                    yield Markup(self._cut(start))
                return
            else:
                found = self._read(self._held[blanks:], ended)
                if found is None:
                    self._waiting = True
                    return
                length, calls = found
                yield self._markup(blanks + length, calls) if length else self._content(blanks + 1)

    def _opening_in(self, text: str) -> int:
        """The first place where a call, a closing or the beginning of one stands; the length when there is none."""
        if self._behind_call:
            lead = len(text) - len(text.lstrip())
            if any(_meets(text[lead:], mark) for mark in self._format.closings):
                return lead
        if self._at_most_one and self._ids:
            return len(text)
        openings = self._format.openings
        places = [place for mark in openings if (place := text.find(mark)) >= 0]
        for match in self._bare.finditer(text) if self._bare else ():
            if self._at_line_start or "\n" in text[: match.end()]:
                places.append(match.end() - 1)
                break
        return min(places, default=len(text) - beginning_of_any(openings, text))

    def _read(self, text: str, ended: bool) -> tuple[int, tuple[ParsedToolCall, ...]] | None:
        """Return the length of the markup that ``text`` begins with, 0 for none; None when more text decides it."""
        try:
            if self._behind_call:
                for mark in self._format.closings:
                    if text.startswith(mark):
                        return len(mark), ()
                    if mark.startswith(text):
                        raise MoreToComeError
            length, calls = self._format.read(text, self._schemas)
        except NotACallError:
            return 0, ()
        except MoreToComeError:
            return (0, ()) if ended else None
        if self._at_most_one and len(calls) > 1:
            return 0, ()
        return length, tuple(self._with_id(call) for call in calls)

    def _with_id(self, call: ParsedToolCall) -> ParsedToolCall:
        if not call.id or call.id in self._ids:
            call = replace(call, id=self._format.new_id())
        self._ids.add(call.id)
        return call

    def _markup(self, length: int, calls: tuple[ParsedToolCall, ...]) -> Markup:
        self._behind_call = self._at_line_start = True
        return Markup(self._cut(length), calls)

    def _content(self, length: int) -> str:
        text = self._cut(length)
        _, newline, last_line = text.rpartition("\n")
        self._at_line_start = (bool(newline) or self._at_line_start) and not last_line.strip()
        self._behind_call = False
        return text

    def _cut(self, length: int) -> str:
        text, self._held = self._held[:length], self._held[length:]
        return text


class ToolCallStyle:
    """How one model writes calls."""

    def __init__(
        self,
        format: CallFormat | None,
        *,
        several: bool = True,
        problem: str | None = None,
        note: Callable[[str], None] | None = None,
    ) -> None:
        self.format = format
        self._several = several
        self._problem = problem
        self._note = note or logger.warning

    def reader(
        self, tools: Sequence[Mapping[str, Any]], *, at_most_one: bool = False
    ) -> ToolCallReader | None:
        """Return a reader for a reply to a request with ``tools``, or None if no calls are possible."""
        if not tools:
            return None
        if self._problem:
            problem, self._problem = self._problem, None
            self._note(problem)
        if self.format is None:
            return None
        return ToolCallReader(self.format, tools, at_most_one=at_most_one or not self._several)

    def end_token(self, token_id: Callable[[str], int | None]) -> int | None:
        """Return the token behind a single call, where the format and the vocabulary have one."""
        return token_id(self.format.call_end) if self.format and self.format.call_end else None


def beginning_of_any(markers: Sequence[str], text: str) -> int:
    """Return how many of the last characters of ``text`` may be the beginning of a marker."""
    longest = max(map(len, markers), default=1) - 1
    if not any(marker[0] in text[-longest:] for marker in markers if longest):
        return 0  # nearly every token
    for length in range(min(longest, len(text)), 0, -1):
        if any(marker.startswith(text[-length:]) for marker in markers):
            return length
    return 0


def _meets(text: str, mark: str) -> bool:
    """Whether ``text`` begins with the mark, or is its beginning."""
    return text.startswith(mark) or bool(text and mark.startswith(text))


def _pieces(stretches: Iterator[str | Markup]) -> Iterator[Piece]:
    for stretch in stretches:
        if isinstance(stretch, Markup):
            yield from stretch.calls
        else:
            yield stretch


def _properties(function: Mapping[str, Any]) -> Mapping[str, Any]:
    properties = (function.get("parameters") or {}).get("properties")
    return properties if isinstance(properties, dict) else {}
