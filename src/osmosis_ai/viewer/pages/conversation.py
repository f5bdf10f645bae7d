"""A sample and its conversation: what was said, what came of it, and the ways from here to others like it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from osmosis_ai.errors import NotFoundError, OsmosisError
from osmosis_ai.evaluation.conversation import (
    LARGEST_CONVERSATION_BYTES,
    Conversation,
    as_dataset_row,
    as_messages,
    json_text,
    read_conversation,
    spans,
)
from osmosis_ai.ui import numbers
from osmosis_ai.ui.charts import SvgChart, TimeSpan, waterfall
from osmosis_ai.ui.shell import NavItem
from osmosis_ai.viewer.access import RenderedPage, Viewing
from osmosis_ai.viewer.queries import Words, query_string, sample_query, word, words_of_sample_query
from osmosis_ai.viewer.shown_steps import ShownSteps, shown_steps
from osmosis_ai.viewer.source import RunEntry, SampleDetail, SampleEntry, SampleQuery, StoredConversation

HIDEABLE = ("system", "tools", "reasoning")
_ITEM = re.compile(r"(\d{1,9})\.(\d{1,9})", re.ASCII)
_STEP = re.compile(r"\d{1,9}", re.ASCII)
_ELSEWHERE = 20
_COPIED = 16 << 10
"""Characters that stand in a page to be copied; what is longer is a download alone."""


@dataclass(frozen=True, slots=True)
class ViewedSample:
    """A sample with its conversation.

    Attributes:
        anchor: what its steps' permalinks begin with.
        stored: how the conversation lies there; its content is in ``conversation``.
        shown: the steps of this page.
    """

    run: str
    href: str
    detail: SampleDetail
    stored: StoredConversation
    conversation: Conversation
    shown: ShownSteps
    anchor: str = "step"

    @property
    def sample(self) -> SampleEntry:
        """What its line of the table says."""
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
        notes = self._graded("notes")
        return notes if isinstance(notes, str) and notes else None

    @property
    def judgements(self) -> Sequence[tuple[str, str]]:
        """Who judged how, and why, of the judges that its grader asked."""
        said = self._graded("judgements")
        return (
            [_judgement(each) for each in said if isinstance(each, dict)]
            if isinstance(said, list | tuple)
            else []
        )

    @property
    def facts(self) -> Sequence[tuple[str, str]]:
        """What came of it, as labels and values."""
        sample, record = self.sample, self.detail.record
        took = numbers.duration(None if sample.duration_ms is None else sample.duration_ms / 1000)
        if sample.model_latency_ms is not None:
            took += f", of it {numbers.duration(sample.model_latency_ms / 1000)} in the model"
        found = [("Outcome", outcome_of(sample)), ("Reward", numbers.number(sample.reward))]
        for name in ("parts", "scores", "unscored"):
            graded = self._graded(name)
            found += [
                (f"  {part}", numbers.number(value) if isinstance(value, (int, float)) else str(value))
                for part, value in (graded.items() if isinstance(graded, Mapping) else ())
            ]
        found += [
            ("Tokens", numbers.count(sample.tokens)),
            ("Cost", numbers.money(sample.cost_usd)),
            ("Duration", took),
            ("Model", self.conversation.model or numbers.MISSING),
            ("Row in the dataset", numbers.count(sample.source_row)),
        ]
        reason = record.get("finish_reason")
        return [*found, ("Ended", reason)] if isinstance(reason, str) else found

    @property
    def problems(self) -> Sequence[str]:
        """Sentences about what of the conversation is not there."""
        stored = self.stored
        if stored.content is not None:
            return self.conversation.problems
        if stored.missing is not None:
            return (stored.missing[:1].upper() + stored.missing[1:].rstrip(".") + ".",)
        size, most = numbers.size(stored.size), numbers.size(LARGEST_CONVERSATION_BYTES)
        return (f"The conversation has {size}: above {most} it is not shown, the download has it.",)

    def _graded(self, name: str) -> Any:
        """Return what the record says of the grading, or else what the rollout says."""
        known = self.detail.record.get(name)
        return self.conversation.grading.get(name) if known is None else known


def _judgement(said: Mapping[str, Any]) -> tuple[str, str]:
    model, score = said.get("model"), said.get("score")
    title = f"Judgement of {model}" if isinstance(model, str) else "Judgement"
    if isinstance(score, (int, float)):
        title += f": {numbers.number(float(score))}"
    words = said.get("explanation") or said.get("error")
    return title, words if isinstance(words, str) else ""


def outcome_of(sample: SampleEntry) -> str:
    """Return how a sample ended in a word: ``passed``, ``failed`` (scored below the threshold), ``unscored``."""
    return "unscored" if sample.passed is None else "passed" if sample.passed else "failed"


def page(view: Viewing, words: Words, *, run: str, item: str) -> RenderedPage:
    """Return the page of a sample; ``with`` shows another one beside it."""
    query = sample_query(words)
    row, attempt = place_of(item)
    whole = _number(words, "show")
    one = viewed(view, run, row, attempt, query, first=_number(words, "from") or whole or 1, whole=whole)
    other = _beside(view, words, run, whole)
    hidden = [name for name in HIDEABLE if name in words.get("hide", ())]
    kept = words_of_sample_query(query)
    state = kept | {"text": word(words, "text") or "", "with": word(words, "with") or ""}
    pairs = zip_longest(one.shown.steps, other.shown.steps if other else ())
    return RenderedPage(
        "conversation.html",
        {
            "title": f"Row {row}, attempt {attempt} of {run}",
            "name": run,
            "crumbs": [
                *view.crumbs("eval", run),
                NavItem("Samples", view.run_href("eval", run, "samples") + query_string(kept)),
            ],
            "here": one.href,
            "one": one,
            "other": other,
            "pairs": list(pairs),
            "kept": state,
            "hidden": hidden,
            "as_markdown": word(words, "text") == "markdown",
            "near": _near(view, run, one.detail, kept),
            "elsewhere": _elsewhere(view, run, one.sample, asked=word(words, "elsewhere") is not None),
            "artifacts": _artifacts(view, run, one),
            "copies": _copies(one),
            "waterfall": _waterfall(one.conversation),
            "outcome_of": outcome_of,
            "address": lambda **more: one.href + _query(state | more, hidden),
        },
    )


def place_of(item: str) -> tuple[int, int]:
    """Return the row and attempt that ``12.0`` names.

    Raises:
        NotFoundError: it names none.
    """
    match = _ITEM.fullmatch(item)
    if match is None:
        raise NotFoundError(f"a sample is called ROW.ATTEMPT, as in 12.0, and not {item[:40]!r}.")
    return int(match[1]), int(match[2])


def viewed(
    view: Viewing,
    run: str,
    row: int,
    attempt: int,
    query: SampleQuery | None = None,
    *,
    first: int = 1,
    whole: int | None = None,
    anchor: str = "step",
) -> ViewedSample:
    """Return a sample with its conversation.

    Raises:
        NotFoundError: there is no such sample.
    """
    detail = view.source.sample(run, row, attempt, query or SampleQuery())
    stored = StoredConversation(None, missing="Conversations are not kept here.")
    if view.can("conversations"):
        stored = view.source.conversation(run, row, attempt, max_bytes=LARGEST_CONVERSATION_BYTES)
    conversation = read_conversation(stored.content) if stored.content is not None else Conversation()
    shown = shown_steps(conversation, first=first, whole=whole)
    return ViewedSample(run, view.sample_href(run, row, attempt), detail, stored, conversation, shown, anchor)


def _number(words: Words, name: str) -> int | None:
    given = word(words, name)
    if given is None:
        return None
    if _STEP.fullmatch(given) is None:
        raise OsmosisError(f"'{name}' is the number of a step, and not {given!r}.")
    return int(given)


def _beside(view: Viewing, words: Words, run: str, whole: int | None) -> ViewedSample | None:
    """Return the sample that ``with=row.attempt`` or ``with=RUN/row.attempt`` names."""
    given = word(words, "with")
    if given is None:
        return None
    named, slash, item = given.rpartition("/")
    row, attempt = place_of(item)
    first = _number(words, "from") or whole or 1
    return viewed(view, named if slash else run, row, attempt, first=first, whole=whole, anchor="other")


def _near(view: Viewing, run: str, detail: SampleDetail, kept: Mapping[str, str]) -> Mapping[str, Any]:
    """Return where the neighbours inside the filter are, and the other attempts of the row."""
    sample = detail.summary
    tries = sorted((each.attempt, each) for each in detail.attempts if each.attempt != sample.attempt)
    before = [number for number, _ in tries if number < sample.attempt]
    behind = [number for number, _ in tries if number > sample.attempt]

    def href(place: tuple[int, int] | None) -> str | None:
        return None if place is None else view.sample_href(run, *place) + query_string(kept)

    return {
        "previous": href(detail.previous),
        "next": href(detail.next),
        "attempt_before": href((sample.row, before[-1]) if before else None),
        "attempt_behind": href((sample.row, behind[0]) if behind else None),
        "attempts": [
            (each, href((each.row, each.attempt)), f"{each.row}.{each.attempt}") for _, each in tries
        ],
    }


def _elsewhere(
    view: Viewing, run: str, sample: SampleEntry, *, asked: bool
) -> Sequence[tuple[RunEntry, SampleEntry, str, str]] | None:
    """Return the same row in other runs: run, sample, its address, and its name for ``with``; None before one asks.

    On this machine every run's journal has to be read for it, which a first page has no time for.
    """
    if view.is_local and not asked:
        return None
    if sample.row_digest is None:
        return ()
    return [
        (
            entry,
            each,
            view.sample_href(entry.name, each.row, each.attempt),
            f"{entry.name}/{each.row}.{each.attempt}",
        )
        for entry, each in view.source.elsewhere(sample.row_digest, limit=_ELSEWHERE)
        if entry.name != run
    ]


def _artifacts(view: Viewing, run: str, one: ViewedSample) -> Sequence[tuple[str, int, str]]:
    """Return path, size in bytes and address of the files that the attempt left."""
    if not view.can("artifacts"):
        return ()
    item = f"{one.sample.row}.{one.sample.attempt}"
    return [
        (
            file.path,
            file.size,
            view.run_href("eval", run, "samples", item, "artifacts", *file.path.split("/")),
        )
        for file in view.source.artifacts(run, one.sample.row, one.sample.attempt)
    ]


def _waterfall(conversation: Conversation) -> SvgChart | None:
    timed = [
        TimeSpan(
            f"message {span.step}" if span.step else span.kind, span.kind, span.start_ms, span.duration_ms
        )
        for span in spans(conversation)
    ]
    return waterfall(timed, label="When the model was called") if timed else None


def _copies(one: ViewedSample) -> Sequence[tuple[str, str, str]]:
    """Return (what, address, text) of what can be taken away; without a text it is a download alone."""
    if not one.conversation.steps:
        return ()
    wanted = {"messages": as_messages(one.conversation), "row": as_dataset_row(one.conversation)}
    found = []
    for kind, value in wanted.items():
        text = json_text(value)
        named = "as messages" if kind == "messages" else "as a row of a dataset"
        found.append((named, f"{one.href}/raw?as={kind}", text if len(text) <= _COPIED else ""))
    return found


def _query(words: Mapping[str, object], hidden: Sequence[str]) -> str:
    written = query_string(words)
    return written + "".join(
        f"{'&' if written or place else '?'}hide={name}" for place, name in enumerate(hidden)
    )
