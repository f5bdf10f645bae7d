"""Two lines of a conversation for a table: how the user's first message begins, and the assistant's last text.

They are made of the messages as the agent's framework has them, or of an archived conversation, and hold no secret:
a long text is cut twice, widely before its secrets are blanked and exactly after that, so that a message of megabytes
costs no more than one of a page.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from osmosis_ai.redaction import Redactor

PREVIEW_CHARS = 160
_READ_CHARS = 4608
# A secret that the first cut goes through is not known any more: it may begin in this much before the cut.
_UNSURE_CHARS = 4096


@dataclass(frozen=True, slots=True)
class Previews:
    """How input and output of a sample begin; None where there is none."""

    input: str | None = None
    output: str | None = None


def previews_of(
    messages: Sequence[Mapping[str, Any]], redact: Redactor, *, prompt: Sequence[Mapping[str, Any]] = ()
) -> Previews:
    """Return the previews of a conversation; of an agent that left none, ``prompt`` is what it was asked."""
    return Previews(
        _preview(_texts(messages, "user"), redact) or _preview(_texts(prompt, "user"), redact),
        _preview(_texts(reversed(messages), "assistant"), redact),
    )


def _texts(messages: Iterable[Mapping[str, Any]], role: str) -> Iterable[str]:
    return (_text(message.get("content")) for message in messages if message.get("role") == role)


def _text(content: object) -> str:
    """Return what a message says in words; its parts are called differently by every framework, their text is not."""
    if isinstance(content, list):
        texts = [part.get("text") for part in content if isinstance(part, Mapping)]
        return "\n".join(text for text in texts if isinstance(text, str))
    return content if isinstance(content, str) else ""


def _preview(texts: Iterable[str], redact: Redactor) -> str | None:
    """Return the beginning of the first text that says something, in one line."""
    for text in texts:
        said = text.lstrip()
        clean = redact.text(said[:_READ_CHARS])
        if len(said) > _READ_CHARS:
            clean = clean[:-_UNSURE_CHARS]
        line = " ".join(clean.split()).encode("utf-8", "replace").decode()
        if line:
            return line if len(line) <= PREVIEW_CHARS else f"{line[: PREVIEW_CHARS - 1]}…"
    return None
