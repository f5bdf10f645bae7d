"""A conversation as a page shows it: so many steps at a time, of long messages the beginning, no more than a browser bears."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from osmosis_ai.evaluation.conversation import Conversation, ConversationStep, ToolExchange, json_text

STEPS_A_PAGE = 200
LONGEST_MESSAGE = 64 << 10
"""Characters; of more the beginning is shown, until somebody asks for the whole."""
LONGEST_SHOWN = 2 << 20
"""Characters; of more only the beginning is ever on a page: the rest is a download."""
_PAGE = 1 << 20
"""Characters of all messages of a page; what comes behind is cut to :data:`_PREVIEW`."""
_PREVIEW = 2_000


@dataclass(frozen=True, slots=True)
class ShownText:
    """A text, or its beginning."""

    text: str
    left_out: int = 0


@dataclass(frozen=True, slots=True)
class ShownExchange:
    """A tool's call and its result."""

    name: str
    arguments: ShownText | None
    result: ShownText | None


@dataclass(frozen=True, slots=True)
class ShownStep:
    """A step with what is shown of it."""

    step: ConversationStep
    text: ShownText
    reasoning: ShownText
    exchanges: Sequence[ShownExchange]
    whole: bool
    cut: bool


@dataclass(frozen=True, slots=True)
class ShownSteps:
    """The steps of a page."""

    steps: Sequence[ShownStep]
    first: int
    total: int
    previous: int | None = None
    next: int | None = None


@dataclass
class _Room:
    """What is left of a page."""

    left: int = field(default=_PAGE)

    def take(self, text: str, most: int) -> ShownText:
        room = max(min(most, self.left), min(_PREVIEW, most))
        shown = text[:room]
        self.left -= len(shown)
        return ShownText(shown, len(text) - len(shown))


def shown_steps(conversation: Conversation, *, first: int = 1, whole: int | None = None) -> ShownSteps:
    """Return the page of a conversation that begins with the step ``first``."""
    total = len(conversation.steps)
    begin = min(max(first, 1), max(total, 1))
    begin -= (begin - 1) % STEPS_A_PAGE
    room = _Room()
    shown = [
        _shown(step, room, whole=step.number == whole)
        for step in conversation.steps[begin - 1 : begin - 1 + STEPS_A_PAGE]
    ]
    return ShownSteps(
        steps=shown,
        first=begin,
        total=total,
        previous=begin - STEPS_A_PAGE if begin > 1 else None,
        next=begin + STEPS_A_PAGE if begin + STEPS_A_PAGE <= total else None,
    )


def step_text(step: ConversationStep) -> str:
    """Return all that a step says, as a text file has it."""
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
    reasoning = room.take(step.reasoning, most)
    text = room.take(step.text, most)
    exchanges = [
        ShownExchange(
            exchange.name or "",
            room.take(_arguments(exchange), most) if exchange.call_id is not None else None,
            room.take(exchange.result, most) if exchange.result is not None else None,
        )
        for exchange in step.exchanges
    ]
    texts = [reasoning, text, *(each for both in exchanges for each in (both.arguments, both.result) if each)]
    size = sum(len(each.text) + each.left_out for each in texts)
    cut = any(each.left_out for each in texts)
    return ShownStep(step, text, reasoning, exchanges, whole=size <= LONGEST_SHOWN, cut=cut)


def _arguments(exchange: ToolExchange) -> str:
    given = exchange.arguments
    return given if isinstance(given, str) else json_text(given, indent=2)
