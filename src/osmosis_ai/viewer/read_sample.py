"""A sample read with its conversation: what page, report and terminal say of it alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from osmosis_ai.evaluation.attempt_files import StoredConversation
from osmosis_ai.evaluation.conversation import (
    LARGEST_CONVERSATION_BYTES,
    Conversation,
    as_messages,
    json_text,
    prompt_of,
    read_conversation,
)
from osmosis_ai.evaluation.lenient_json import as_table
from osmosis_ai.ui import numbers
from osmosis_ai.viewer.source import SampleDetail, SampleEntry

_FROM_MODEL_CALLS = "Taken from the model calls of an agent that ended without giving a conversation: what it did after the last of them is not known."


@dataclass(frozen=True)
class ReadSample:
    """A sample of a run, and what was said."""

    run: str
    detail: SampleDetail
    stored: StoredConversation
    conversation: Conversation

    @property
    def sample(self) -> SampleEntry:
        """What its line of a table says."""
        return self.detail.summary

    @property
    def ground_truth(self) -> str | None:
        """The expected answer: of its row, else as the rollout was told it."""
        truth = self.detail.ground_truth
        if truth is None:
            return self.conversation.label
        return truth if isinstance(truth, str) else json_text(truth, indent=2)

    @property
    def notes(self) -> str | None:
        """What the grader wrote beside the reward."""
        notes = self.graded("notes")
        return notes if isinstance(notes, str) and notes else None

    @property
    def judgements(self) -> Sequence[tuple[str, str]]:
        """Who judged how, and why, of the judges that its grader asked."""
        said = self.graded("judgements")
        given = said if isinstance(said, list | tuple) else ()
        return [_judgement(each) for each in given if isinstance(each, dict)]

    @property
    def parts(self) -> Sequence[tuple[str, str]]:
        """What the reward is made of: the grader's parts, and of an agent loop what each eval function gave."""
        return [
            (str(part), numbers.number(float(value)) if _is_number(value) else str(value))
            for name in ("parts", "scores", "unscored")
            if isinstance(graded := self.graded(name), Mapping)
            for part, value in graded.items()
        ]

    @property
    def problems(self) -> Sequence[str]:
        """Sentences about what of the conversation is not there, or not the agent's own account."""
        stored = self.stored
        if stored.content is not None:
            taken = (_FROM_MODEL_CALLS,) if self.conversation.from_model_calls else ()
            return (*taken, *self.conversation.problems)
        if stored.missing is not None:
            return (stored.missing[:1].upper() + stored.missing[1:].rstrip(".") + ".",)
        size, most = numbers.size(stored.size), numbers.size(LARGEST_CONVERSATION_BYTES)
        return (f"The conversation has {size}: above {most} it is not read, {stored.whole} has it.",)

    def graded(self, name: str) -> Any:
        """Return what the grader left (``notes``, ``parts`` …), by the record, or else as the rollout says."""
        known = self.detail.record.get(name)
        return grading_of(self.conversation).get(name) if known is None else known


def as_dataset_row(conversation: Conversation) -> dict[str, Any]:
    """Return the attempt's prompt as a row of a dataset (``osmosis_ai.datasets.rows``)."""
    prompt = prompt_of(as_messages(conversation))
    row: dict[str, Any] = {}
    for role in ("system", "user"):
        texts = [str(message["content"]) for message in prompt if message["role"] == role]
        if texts:
            row[f"{role}_prompt"] = "\n\n".join(texts)
    if conversation.label is not None:
        row["ground_truth"] = conversation.label
    if conversation.metadata is not None:
        row["metadata"] = conversation.metadata
    return row


def grading_of(conversation: Conversation) -> Mapping[str, Any]:
    """Return the grader's ``notes`` and ``parts``, and the ``judgements`` of its judges."""
    extra = as_table(conversation.facts.get("sample_extra_fields"))
    judgements = as_table(extra.get("judge_calls")).get("judgements")
    return {**as_table(extra.get("grader_notes")), "judgements": judgements}


def conversation_in(stored: StoredConversation) -> Conversation:
    """Return the conversation that lies there; one without steps where there is none."""
    return read_conversation(stored.content) if stored.content is not None else Conversation()


def _judgement(said: Mapping[str, Any]) -> tuple[str, str]:
    model, score, stated = (said.get(name) for name in ("model", "score", "stated_score"))
    title = f"Judgement of {model}" if isinstance(model, str) else "Judgement"
    if _is_number(score):
        clamped = f" (clamped from {numbers.number(float(stated or 0))})" if _is_number(stated) else ""
        title += f": {numbers.number(float(score or 0))}{clamped}"
    words = said.get("explanation") or said.get("error")
    return title, words if isinstance(words, str) else ""


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
