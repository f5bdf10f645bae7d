"""`osmosis eval show`: the conversations of a run, of this machine or of a platform, those that one asks for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from osmosis_ai.errors import NotFoundError
from osmosis_ai.evaluation.conversation import LARGEST_CONVERSATION_BYTES, as_messages
from osmosis_ai.services.downloaded_runs import laid_out
from osmosis_ai.services.eval_runs.conversation_readers import (
    LocalConversations,
    PlatformConversations,
    RunConversations,
)
from osmosis_ai.services.eval_runs.resolver import resolve_run
from osmosis_ai.viewer.read_sample import ReadSample, conversation_in

if TYPE_CHECKING:
    from osmosis_ai.api.client import PlatformClient
    from osmosis_ai.evaluation.attempt_files import StoredConversation
    from osmosis_ai.llm.finish_reasons import FlaggedFinish
    from osmosis_ai.viewer.source import Outcome, SampleEntry

MOST_SEARCHED = 2_000
"""Conversations that one search reads."""
_AT_ONCE = 20


@dataclass(frozen=True)
class WantedSamples:
    """Which samples are asked for.

    Attributes:
        finish: finish reason of at least one of their model calls.
        text: what the conversation, its previews or its error hold, without regard to case.
        limit: how many at most.
    """

    row: int | None = None
    attempt: int | None = None
    outcome: Outcome | None = None
    finish: FlaggedFinish | None = None
    text: str = ""
    limit: int = 5


@dataclass(frozen=True)
class ShownConversation(ReadSample):
    """A sample with its conversation, and beside it the same row in the other run where one asked for it."""

    beside: ShownConversation | None = None

    def data(self) -> dict[str, Any]:
        """Return it as scripts see it; what is not known is left out."""
        sample = self.sample
        known = {
            "run": self.run,
            "row": sample.row,
            "attempt": sample.attempt,
            "source_row_index": sample.source_row,
            "row_digest": sample.row_digest,
            "status": sample.status,
            "passed": sample.passed,
            "reward": sample.reward,
            "tokens": sample.tokens,
            "cost_usd": sample.cost_usd,
            "duration_ms": sample.duration_ms,
            "boundary": sample.boundary,
            "category": sample.category,
            "error": sample.error,
            "finish_reasons": sample.finish_reasons,
            "from_model_calls": self.conversation.from_model_calls or None,
            "ground_truth": self.ground_truth,
            **{name: self.graded(name) for name in ("notes", "parts", "judgements")},
        }
        return {
            **{name: value for name, value in known.items() if value is not None},
            "messages": as_messages(self.conversation),
            "problems": list(self.problems),
            **({"beside": self.beside.data()} if self.beside is not None else {}),
        }


@dataclass(frozen=True)
class ShownRun:
    """What was asked for.

    Attributes:
        more: whether there are others like them.
        searched: how many conversations were read for a text; None where none was asked for.
        without: how many samples of a search have no conversation, so that only their previews and errors were read.
        too_large: how many have one that is too large to be read.
        unsearched: whether some samples were not looked at, for their number.
        problems: sentences about what of the run could not be read.
        extent: a sentence about whose samples they are, where another run has more.
    """

    name: str
    place: str
    conversations: Sequence[ShownConversation]
    more: bool = False
    beside: str | None = None
    searched: int | None = None
    without: int = 0
    too_large: int = 0
    unsearched: bool = False
    problems: Sequence[str] = ()
    extent: str | None = None

    def data(self) -> dict[str, Any]:
        """Return it as scripts see it."""
        known: dict[str, Any] = {
            "run": self.name,
            "place": self.place,
            "samples": [each.data() for each in self.conversations],
            "has_more": self.more,
        }
        if self.extent is not None:
            known["extent"] = self.extent
        if self.problems:
            known["problems"] = list(self.problems)
        if self.beside is not None:
            known["beside"] = self.beside
        if self.searched is not None:
            known["search"] = {
                "conversations": self.searched,
                "without_conversation": self.without,
                "too_large": self.too_large,
                "complete": not (self.unsearched or self.more or self.too_large),
            }
        return known


def show(
    reference: str,
    wanted: WantedSamples,
    *,
    client: Callable[[], PlatformClient],
    beside: str | None = None,
    start: Path | None = None,
) -> ShownRun:
    """Return conversations of a run, by row and attempt.

    Args:
        reference: the run, as the user named it (``services.eval_runs.resolver``).
        wanted: which.
        client: connects with the platform, when it has to be asked.
        beside: another run, whose attempt on the same row is shown with each.
        start: a directory of the workspace; the current one when None.

    Raises:
        NotFoundError: there is no such run, or no sample of the row and attempt that were named.
        OsmosisError: a run can not be read.
    """
    with ExitStack() as held:
        run = _opened(reference, client, start, held)
        other = _opened(beside, client, start, held) if beside is not None else None
        return shown_samples(run, wanted, other)


def shown_samples(
    run: RunConversations, wanted: WantedSamples, other: RunConversations | None = None
) -> ShownRun:
    """Return those of a run's samples that are wanted, beside each the same row of the other run.

    Raises:
        NotFoundError: it has no sample of the row and attempt that were named.
    """
    scan = _Scan(run, wanted)
    found = scan.read()
    if not found and wanted.row is not None and not (wanted.outcome or wanted.finish or wanted.text):
        missing = run.no_sample(wanted.row, wanted.attempt)
        raise _with_nearest(missing, [*filter(None, [run.extent]), *run.problems()])
    shown = [_shown(run, sample, stored, other) for sample, stored in found]
    problems = list(run.problems())
    if not found and wanted.finish and all(each.finish_reasons is None for each in run.samples(None, None)):
        problems.append("No attempt of this run has a recorded finish reason.")
    return ShownRun(
        name=run.name,
        place=run.place,
        conversations=shown,
        more=scan.more,
        beside=other.name if other is not None else None,
        searched=scan.searched if wanted.text else None,
        without=scan.without,
        too_large=scan.too_large,
        unsearched=scan.gave_up,
        problems=problems,
        extent=run.extent,
    )


def _with_nearest(missing: NotFoundError, problems: Sequence[str]) -> NotFoundError:
    """Return the same with the nearest samples, which are links on a page, in its hint."""
    near = ", ".join(missing.details["samples"])
    numbers = f"{missing.hint}; the nearest, as ROW.ATTEMPT: {near}" if near else missing.hint
    hint = " ".join([*problems, numbers or ""])
    return NotFoundError(missing.message, hint=hint, details=missing.details)


def _opened(
    reference: str, client: Callable[[], PlatformClient], start: Path | None, held: ExitStack
) -> RunConversations:
    found = resolve_run(reference, client=client, start=start, downloads=True)
    if found.directory is not None:
        directory, cache = held.enter_context(laid_out(found.directory))
        return held.enter_context(LocalConversations(directory, place=found.place, cache=cache))
    scratch = held.enter_context(TemporaryDirectory(prefix="osmosis-show-"))
    return PlatformConversations(client(), found.name, Path(scratch))


class _Scan:
    """The samples that are wanted, each with its conversation; of a search so many are read, no more.

    Attributes:
        searched, without, too_large: of a search's samples, how many conversations were read, how many have none, and how
            many have too large a one.
        gave_up: whether some samples were not looked at, for their number.
        more: whether there are more samples that are wanted.
    """

    def __init__(self, run: RunConversations, wanted: WantedSamples) -> None:
        self._run = run
        self._wanted = wanted
        self.searched = self.without = self.too_large = 0
        self.gave_up = False
        self.more = False

    def read(self) -> list[tuple[SampleEntry, StoredConversation]]:
        """Return those that are shown."""
        wanted = self._wanted
        samples = self._run.samples(wanted.row, wanted.outcome)
        rest = (
            each
            for each in samples
            if wanted.attempt in (None, each.attempt)
            and (wanted.finish is None or wanted.finish in (each.finish_reasons or ()))
        )
        limit = self._wanted.limit
        if self._wanted.text:
            found = list(islice(self._search(rest), limit + 1))
            self.more = len(found) > limit
            return found[:limit]
        # Each that comes is one that is wanted: that there is another is known without its conversation.
        shown = list(islice(rest, limit))
        self.more = next(rest, None) is not None
        return list(zip(shown, self._run.conversations(shown), strict=True))

    def _search(self, rest: Iterator[SampleEntry]) -> Iterator[tuple[SampleEntry, StoredConversation]]:
        while piece := list(islice(rest, _AT_ONCE)):
            if self.searched + self.without + self.too_large >= MOST_SEARCHED:
                self.gave_up = True
                return
            for sample, stored in zip(piece, self._run.conversations(piece), strict=True):
                self._count(stored)
                if self._is_found(sample, stored):
                    yield sample, stored

    def _count(self, stored: StoredConversation) -> None:
        if stored.content is not None:
            self.searched += 1
        elif stored.size > LARGEST_CONVERSATION_BYTES:
            self.too_large += 1
        else:
            self.without += 1

    def _is_found(self, sample: SampleEntry, stored: StoredConversation) -> bool:
        from osmosis_ai.evaluation.conversation import holds

        text = self._wanted.text.casefold()
        said = (sample.input, sample.output, sample.error)
        return any(text in each.casefold() for each in said if each) or (
            stored.content is not None and holds(stored.content, text)
        )


def _shown(
    run: RunConversations, sample: SampleEntry, stored: StoredConversation, other: RunConversations | None
) -> ShownConversation:
    beside = None
    if other is not None and (same := other.same_row(sample)) is not None:
        beside = _shown(other, same, other.conversations([same])[0], None)
    return ShownConversation(run.name, run.detail(sample), stored, conversation_in(stored), beside)
