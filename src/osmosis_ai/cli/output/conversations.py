"""Conversations on a terminal: text that does nothing there, of long messages the beginning."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from osmosis_ai.cli.output import formats
from osmosis_ai.cli.output.results import (
    Block,
    ConversationBlock,
    ConversationTurn,
    DetailResult,
    SideBySide,
    Styled,
    Text,
    Tone,
)
from osmosis_ai.ui.text import plain, removed_words, without_sequences

if TYPE_CHECKING:
    from osmosis_ai.evaluation.conversation import Conversation, ToolExchange
    from osmosis_ai.services.eval_runs.show import ShownConversation, ShownRun, WantedSamples
    from osmosis_ai.services.training_runs import ShownValidation

_LONGEST = 8_000
"""Characters of a message; JSON has the whole."""
_LONGEST_NAME = 200


def shown_run(found: ShownRun, wanted: WantedSamples) -> DetailResult:
    return DetailResult(
        data=found.data(),
        blocks=[_block(each, against=found.beside) for each in found.conversations],
        hints=list(_hints(found, wanted)),
    )


def shown_validation(found: ShownValidation, wanted: WantedSamples) -> DetailResult:
    shown = shown_run(found.run, wanted)
    of = f" of {found.total:,}" if found.total is not None else ""
    told = f"Validation after step {found.step:,}: {found.kept:,}{of} attempts are kept, unscored ones first, then the worst."
    return replace(shown, data=found.data(), blocks=[Text(told, in_plain=True), *shown.blocks])


def _block(shown: ShownConversation, *, against: str | None) -> Block:
    if against is None:
        return _conversation(shown)
    missing = Styled("no attempt on this row", "dim")
    right = ConversationBlock([], title=against, closing=missing, in_plain=True)
    if shown.beside is not None:
        right = _conversation(shown.beside, named=True)
    return SideBySide(_conversation(shown, named=True), right)


def _conversation(shown: ShownConversation, *, named: bool = False) -> ConversationBlock:
    turns = [
        ConversationTurn(_name(turn.role), _text(turn.text), _name(turn.label))
        for turn in turns_of(shown.conversation)
    ]
    sample = shown.sample
    place = f"row {sample.row}, attempt {sample.attempt} ({sample.outcome})"
    return ConversationBlock(
        turns=[*turns, *_remarks(shown)],
        title=f"{shown.run}, {place}" if named else place,
        closing=_closing(shown),
        in_plain=True,
    )


def turns_of(conversation: Conversation) -> Iterator[ConversationTurn]:
    """Yield the turns, including tool calls and their results."""
    for step in conversation.steps:
        if step.reasoning:
            yield ConversationTurn(step.role, step.reasoning, "reasoning")
        calls = [_call(exchange) for exchange in step.exchanges if exchange.call_id is not None]
        texts = [step.text, *calls] if step.text else calls
        if texts:
            yield ConversationTurn(step.role, "\n".join(texts), "calls a tool" if calls else "")
        for exchange in step.exchanges:
            if exchange.result is not None:
                yield ConversationTurn("tool", exchange.result, exchange.name or "")


def _call(exchange: ToolExchange) -> str:
    """Return a call as text: ``multiply(a=11, b=46)``."""
    from osmosis_ai.evaluation.conversation import json_text

    arguments = exchange.arguments
    if isinstance(arguments, Mapping):
        arguments = ", ".join(f"{name}={json_text(value)}" for name, value in arguments.items())
    return f"{exchange.name or ''}({arguments if isinstance(arguments, str) else json_text(arguments)})"


def _remarks(shown: ShownConversation) -> Iterator[ConversationTurn]:
    """Yield further turns: the grader's notes, the error, and parts that could not be read."""
    sample = shown.sample
    if shown.notes is not None:
        yield ConversationTurn("grader", _text(shown.notes), "notes")
    if shown.parts:
        yield ConversationTurn(
            "grader", _text("\n".join(f"{name}: {value}" for name, value in shown.parts)), "parts"
        )
    for title, words in shown.judgements:
        yield ConversationTurn("judge", _text(words), _name(title))
    if sample.error:
        label = ", ".join(filter(None, (sample.boundary, sample.category)))
        yield ConversationTurn("error", _text(sample.error), _name(label))
    frames = (shown.detail.traceback or "").rpartition('  File "')
    if frames[1]:
        last = f"{frames[1]}{frames[2]}".splitlines()[:2]
        where = "full traceback: --json, or the attempt's page in `osmosis view`"
        yield ConversationTurn("raised", _text("\n".join(map(str.strip, last)) + f"\n({where})"))
    for problem in shown.problems:
        yield ConversationTurn("note", _text(problem))


def _closing(shown: ShownConversation) -> Styled:
    sample, truth = shown.sample, shown.ground_truth
    words = "no reward"
    tone: Tone = "warn"
    if sample.reward is not None:
        words, tone = f"reward {sample.reward:g}", "good" if sample.passed else "bad"
    if truth is not None:
        words += f", correct answer {_text(truth)}"
    known = [
        *sample.flagged_finishes,
        f"{formats.count(sample.tokens)} tokens" if sample.tokens is not None else "",
        formats.money(sample.cost_usd) if sample.cost_usd else "",
        formats.duration(sample.duration_ms / 1000) if sample.duration_ms is not None else "",
    ]
    told = " · ".join(each for each in known if each)
    return Styled(f"{words} ({told})" if told else words, tone)


def _hints(found: ShownRun, wanted: WantedSamples) -> Iterator[str]:
    from osmosis_ai.evaluation.conversation import LARGEST_CONVERSATION_BYTES
    from osmosis_ai.ui.numbers import amount

    yield from map(plain, found.problems)
    if found.is_empty:
        yield f"The run '{plain(found.name)}' has no attempts yet."
    elif not found.conversations:
        yield f"No attempt of '{plain(found.name)}' matches."
    if found.without:
        of = f"{found.without:,} of {found.without + found.too_large + (found.searched or 0):,}"
        have = "has" if found.without == 1 else "have"
        yield f"{of} attempts {have} no readable conversation; only their previews and errors were searched."
    if found.too_large:
        most = f"{LARGEST_CONVERSATION_BYTES >> 20} MiB"
        yield f"Conversations that were not searched, each larger than {most}: {found.too_large:,}."
    if found.unsearched:
        were = "was" if found.searched == 1 else "were"
        yield f"{amount(found.searched or 0, 'conversation')} {were} searched, not all: name a --row, or an outcome."
    if found.more:
        pages = "its page on the platform" if found.place == "platform" else "`osmosis view`"
        yield f"More attempts match: --limit prints more than {wanted.limit}, {pages} shows all."


def _text(text: str) -> str:
    """Return text as a terminal may show it, and how much of it is not there."""
    cut = text[:_LONGEST]
    _, removed = without_sequences(cut)
    shown = plain(cut)
    left = len(text) - len(cut)
    remarks = [f"{left:,} more characters, which --json has"] if left else []
    remarks += [removed_words(removed)] if removed else []
    return f"{shown}\n({'; '.join(remarks)})" if remarks else shown


def _name(text: str) -> str:
    return plain(text[:_LONGEST_NAME])
