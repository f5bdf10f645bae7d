"""Read the conversations of evaluations on this machine and on the platform."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from itertools import groupby, islice
from pathlib import Path
from shlex import quote
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Protocol

from osmosis_ai.api.models.eval_runs import EvalSample
from osmosis_ai.errors import NotFoundError, OsmosisError
from osmosis_ai.evaluation.attempt_files import StoredConversation
from osmosis_ai.evaluation.conversation import LARGEST_CONVERSATION_BYTES, as_messages
from osmosis_ai.llm.replies import FlaggedFinish
from osmosis_ai.services.downloaded_runs import laid_out
from osmosis_ai.services.eval_runs.resolver import resolve_run
from osmosis_ai.services.runs.download import DownloadPlan, plan_download, run_download
from osmosis_ai.services.runs.lifecycle import get_evaluation, lists_samples, platform_samples
from osmosis_ai.viewer.conversations import ReadSample, conversation_in
from osmosis_ai.viewer.source import (
    Outcome,
    SampleDetail,
    SampleEntry,
    SampleQuery,
    nearest_samples,
    no_sample,
    pieces,
)
from osmosis_ai.workspace.layout import WorkspaceDirectory

if TYPE_CHECKING:
    from osmosis_ai.api.client import PlatformClient


_PAGE = 200
_LARGEST_LISTING_BYTES = 512 << 20
_CONVERSATION = re.compile(r"trajectories/row_([0-9]{1,18})_run_([0-9]{1,18})\.json")


class RunConversations(Protocol):
    """A run with conversations; ``subject`` starts a sentence about it.

    ``samples`` are by row and attempt. ``problems`` are sentences about unreadable parts, to be asked for after reading.
    ``same_row`` finds the sample on the row of another run's sample, if possible with the same attempt number.
    """

    @property
    def name(self) -> str: ...
    @property
    def place(self) -> str: ...
    @property
    def subject(self) -> str: ...
    def samples(self, row: int | None, outcome: Outcome | None) -> Iterator[SampleEntry]: ...
    def detail(self, sample: SampleEntry) -> SampleDetail: ...
    def conversations(self, samples: Sequence[SampleEntry]) -> Sequence[StoredConversation]: ...
    def no_sample(self, row: int, attempt: int | None) -> NotFoundError: ...
    def problems(self) -> Sequence[str]: ...
    def same_row(self, sample: SampleEntry) -> SampleEntry | None: ...


class LocalConversations(AbstractContextManager["LocalConversations"]):
    """A run directory of this machine, with a directory for derived data."""

    def __init__(self, directory: Path, *, place: str, cache: Path) -> None:
        from osmosis_ai.viewer.local.source import LocalSource

        self.name, self.place = directory.name, place
        self.subject = f"the run `{self.name}`"
        self._source = LocalSource(directory, cache_dir=cache)
        self._source.require_samples(self.name)

    def __exit__(self, *_: object) -> None:
        self._source.close()

    def samples(self, row: int | None, outcome: Outcome | None) -> Iterator[SampleEntry]:
        query = SampleQuery(row=row, outcome=outcome)
        source, name = self._source, self.name
        for piece in pieces(lambda cursor: source.samples(name, query, limit=_PAGE, cursor=cursor)):
            yield from piece.items

    def detail(self, sample: SampleEntry) -> SampleDetail:
        return self._source.sample(self.name, sample.row, sample.attempt, SampleQuery())

    def conversations(self, samples: Sequence[SampleEntry]) -> Sequence[StoredConversation]:
        return [
            self._source.conversation(self.name, each.row, each.attempt, max_bytes=LARGEST_CONVERSATION_BYTES)
            for each in samples
        ]

    def no_sample(self, row: int, attempt: int | None) -> NotFoundError:
        return self._source.no_sample(self.name, row, attempt)

    def problems(self) -> Sequence[str]:
        return self._source.run("eval", self.name).problems

    def same_row(self, sample: SampleEntry) -> SampleEntry | None:
        if sample.row_digest is None:
            return _nearest(self.samples(sample.row, None), sample)
        found = self._source.elsewhere(sample.row_digest, limit=_PAGE)
        return _nearest((each for _, each in found), sample)


class PlatformConversations:
    """A run of a platform; its files are downloaded to ``scratch``."""

    place = "platform"

    def __init__(self, client: PlatformClient, name: str, scratch: Path) -> None:
        self._client = client
        self._scratch = scratch
        detail = get_evaluation(client, name)
        self._run = detail.eval_run
        self.name = self._run.name or self._run.id
        self.subject = f"the run `{self.name}`"
        threshold = detail.results.pass_threshold if detail.results is not None else None
        self._rows = (detail.results.sampled_rows or 0) if detail.results is not None else 0
        attempts = (detail.config or {}).get("n")
        self._n = attempts if type(attempts) is int and attempts > 0 else 0
        self._threshold = threshold if threshold is not None and math.isfinite(threshold) else 1.0
        self._plans: dict[int | None, DownloadPlan] = {}
        self._noted: dict[tuple[int, int], Mapping[str, Any]] = {}
        self._problems: Sequence[str] = ()

    def samples(self, row: int | None, outcome: Outcome | None) -> Iterator[SampleEntry]:
        found = self._told() if lists_samples(self._client) else self._listed()
        for number, attempts in groupby(found, key=lambda sample: sample.row):
            if row in (None, number):
                yield from of_outcome(list(attempts), outcome)
            if row is not None and number > row:
                return

    def detail(self, sample: SampleEntry) -> SampleDetail:
        return SampleDetail(sample, self._noted.get((sample.row, sample.attempt), {}))

    def conversations(self, samples: Sequence[SampleEntry]) -> Sequence[StoredConversation]:
        paths = [f"trajectories/row_{each.row}_run_{each.attempt}.json" for each in samples]
        by_hand = f"`osmosis eval download {quote(self.name)}`"
        found: dict[str, StoredConversation] = {}
        for source_row in dict.fromkeys(each.source_row for each in samples):
            plan = self._plan(source_row)
            wanted = [file for file in plan.pending if file.path in paths]
            small = [file for file in wanted if file.size <= LARGEST_CONVERSATION_BYTES]
            outcome = run_download(self._client, replace(plan, pending=tuple(small), failures=()))
            found |= {
                file.path: StoredConversation(None, file.size, whole=f"`{file.path}` of {by_hand}")
                for file in wanted
            }
            found |= {
                failed.path: StoredConversation(None, missing=f"it could not be fetched: {failed.error}")
                for failed in outcome.failures
            }
            for file in outcome.fetched:
                content = (self._scratch / file.path).read_bytes()
                (self._scratch / file.path).unlink()
                found[file.path] = StoredConversation(content, len(content))
        none = StoredConversation(None, missing="the platform has no conversation for it")
        return [found.get(path, none) for path in paths]

    def no_sample(self, row: int, attempt: int | None) -> NotFoundError:
        """Return the error about a missing sample; reads only enough samples to find the nearest ones."""
        near: list[tuple[int, int]] = []
        for number, attempts in groupby(self.samples(None, None), key=lambda sample: sample.row):
            # Rows are ordered: this row and all later ones are farther away than those already found.
            if len(near) == 3 and number - row > abs(near[-1][0] - row):
                break
            near = nearest_samples([*near, *((number, each.attempt) for each in attempts)], row, attempt)
        return no_sample(self.name, row, attempt, near, rows=self._rows, n=self._n)

    def problems(self) -> Sequence[str]:
        return self._problems

    def same_row(self, sample: SampleEntry) -> SampleEntry | None:
        if sample.row_digest is None:
            return _nearest(self.samples(sample.row, None), sample)
        same = (each for each in self.samples(None, None) if each.row_digest == sample.row_digest)
        return _nearest(same, sample)

    def _plan(self, source_row: int | None) -> DownloadPlan:
        """Return the conversations to download for a dataset row; all if the row is unknown."""
        if source_row not in self._plans:
            self._plans[source_row] = plan_download(
                self._client,
                self._run,
                types=("trajectories",),
                workspace=WorkspaceDirectory(self._scratch),
                rows=None if source_row is None else str(source_row),
                output=self._scratch,
            )
        return self._plans[source_row]

    def _told(self) -> Iterator[SampleEntry]:
        for each in platform_samples(self._client, self._run.id, details=True):
            if each.notes is not None or each.parts is not None:
                self._noted[each.row, each.attempt] = {"notes": each.notes, "parts": each.parts}
            yield platform_entry(each, self._threshold)

    def _listed(self) -> Iterator[SampleEntry]:
        """Yield the samples of the contract's ``summary.jsonl``; invalid lines are counted as a problem."""
        plan = self._plan(None)
        listing = tuple(
            file
            for file in plan.pending
            if file.path == "summary.jsonl" and file.size <= _LARGEST_LISTING_BYTES
        )
        outcome = run_download(self._client, replace(plan, pending=listing, failures=()))
        if outcome.failures:
            raise OsmosisError(
                f"The attempts of {self.subject} could not be fetched: {outcome.failures[0].error}."
            )
        if not outcome.fetched:
            yield from self._unlisted(plan)
            return
        with (self._scratch / "summary.jsonl").open("rb") as lines:
            unreadable = 0
            for line in lines:
                found = _listed_sample(line)
                if found is None:
                    unreadable += 1
                    self._problems = [
                        f"{unreadable:,} lines of the platform's list of attempts cannot be read; these attempts are omitted."
                    ]
                    continue
                known = {name: found.get(name) for name in ("tokens", "duration_ms")}
                known["category"] = str(found.get("error_type") or "")[:100] or None
                status = str(found.get("status") or "unknown")
                place = found["row_index"], found["run_index"]
                yield _entry(*place, status, found.get("reward"), None, known, self._threshold)

    def _unlisted(self, plan: DownloadPlan) -> Iterator[SampleEntry]:
        """Yield the samples that are known only by their conversation."""
        self._problems = [
            "The platform has no list of the run's attempts; only conversations are shown, without results."
        ]
        found = [match for file in plan.pending if (match := _CONVERSATION.fullmatch(file.path))]
        for row, attempt in sorted((int(match[1]), int(match[2])) for match in found):
            yield _entry(row, attempt, "unknown", None, None, {}, self._threshold)


def _listed_sample(line: bytes) -> Mapping[str, Any] | None:
    """Parse a line of ``summary.jsonl``; None if it is not a sample."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    place = [found.get(name) for name in ("row_index", "run_index")] if isinstance(found, dict) else [None]
    return found if all(type(number) is int and number >= 0 for number in place) else None


def platform_entry(sample: EvalSample, pass_threshold: float) -> SampleEntry:
    known = sample.model_dump(exclude={"row", "attempt", "status", "source_row_index", "reward"})
    place = sample.row, sample.attempt
    return _entry(*place, sample.status, sample.reward, sample.source_row_index, known, pass_threshold)


def _entry(
    row: int,
    attempt: int,
    status: str,
    reward: Any,
    source_row: int | None,
    known: Mapping[str, Any],
    pass_threshold: float,
) -> SampleEntry:
    fields = SampleEntry.__dataclass_fields__
    numeric = isinstance(reward, (int, float)) and math.isfinite(reward)
    scored = float(reward) if numeric and status == "success" else None
    return SampleEntry(
        row=row,
        attempt=attempt,
        status=status,
        passed=None if scored is None else scored >= pass_threshold,
        source_row=source_row,
        reward=scored,
        **{name: value for name, value in known.items() if name in fields and value is not None},
    )


def of_outcome(attempts: Sequence[SampleEntry], outcome: Outcome | None) -> Sequence[SampleEntry]:
    if outcome is None:
        return attempts
    if outcome == "flaky":
        passed = {each.passed for each in attempts if each.passed is not None}
        return attempts if passed == {True, False} else ()
    if outcome == "failed":
        return [each for each in attempts if each.status == "failed"]
    wanted = {"passed": True, "below": False, "unscored": None}[outcome]
    return [each for each in attempts if each.passed is wanted]


def _nearest(found: Iterator[SampleEntry], sample: SampleEntry) -> SampleEntry | None:
    """Return the attempt with the same number, or else the first."""
    first: SampleEntry | None = None
    for each in found:
        if each.attempt == sample.attempt:
            return each
        first = first or each
    return first


_SHOWN_FIELDS = (
    *("row", "attempt", "row_digest", "status", "passed", "reward", "tokens", "cost_usd", "duration_ms"),
    *("boundary", "category", "error", "finish_reasons"),
)
MOST_SEARCHED = 2_000
"""Maximum number of conversations that one search reads."""
_AT_ONCE = 20


@dataclass(frozen=True)
class WantedSamples:
    """A filter for samples; ``text`` is searched for in the conversation, its previews and its error."""

    row: int | None = None
    attempt: int | None = None
    outcome: Outcome | None = None
    finish: FlaggedFinish | None = None
    text: str = ""
    limit: int = 5


@dataclass(frozen=True)
class ShownConversation(ReadSample):
    """A sample with its conversation and, if requested, the same row in the other run."""

    beside: ShownConversation | None = None

    def data(self) -> dict[str, Any]:
        """Return the JSON without unknown values."""
        sample = self.sample
        known = {
            "run": self.run,
            "source_row_index": sample.source_row,
            **{name: getattr(sample, name) for name in _SHOWN_FIELDS},
            "from_model_calls": self.conversation.from_model_calls or None,
            "ground_truth": self.ground_truth,
            "traceback": self.detail.traceback,
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
    """The result of :func:`show`.

    A search read ``searched`` conversations, was ``without`` conversation for others, or found them ``too_large``;
    ``unsearched`` is True if it stopped at its limit, ``is_empty`` if the run has no attempts.
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
    is_empty: bool = False

    def data(self) -> dict[str, Any]:
        known: dict[str, Any] = {
            "run": self.name,
            "place": self.place,
            "samples": [each.data() for each in self.conversations],
            "has_more": self.more,
        }
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
    reference: str, wanted: WantedSamples, *, client: Callable[[], PlatformClient], beside: str | None = None
) -> ShownRun:
    with ExitStack() as held:
        run = _opened(reference, client, held)
        other = _opened(beside, client, held) if beside is not None else None
        return shown_samples(run, wanted, other)


def shown_samples(
    run: RunConversations, wanted: WantedSamples, other: RunConversations | None = None
) -> ShownRun:
    """Return the matching samples of a run, each with the same row of the other run."""
    seen: Counter[str] = Counter()
    matching = (
        each
        for each in run.samples(wanted.row, wanted.outcome)
        if wanted.attempt in (None, each.attempt)
        and (wanted.finish is None or wanted.finish in (each.finish_reasons or ()))
    )
    if wanted.text:
        found = list(islice(_search(run, matching, wanted.text.casefold(), seen), wanted.limit + 1))
        more, found = len(found) > wanted.limit, found[: wanted.limit]
    else:
        first = list(islice(matching, wanted.limit))
        # One more sample shows that there are more, without reading its conversation.
        more = next(matching, None) is not None
        found = list(zip(first, run.conversations(first), strict=True))
    if not found and wanted.row is not None and not (wanted.outcome or wanted.finish or wanted.text):
        missing = run.no_sample(wanted.row, wanted.attempt)
        # The nearest samples are links on a page.
        near = ", ".join(missing.details["samples"])
        numbers = f"{missing.hint}; the nearest, as ROW.ATTEMPT: {near}" if near else missing.hint
        hint = " ".join([*run.problems(), numbers or ""])
        raise NotFoundError(missing.message, hint=hint, details=missing.details)
    shown = [_shown(run, sample, stored, other) for sample, stored in found]
    problems = list(run.problems())
    if not found and wanted.finish and all(each.finish_reasons is None for each in run.samples(None, None)):
        problems.append("No attempt of this run has a recorded finish reason.")
    return ShownRun(
        name=run.name,
        place=run.place,
        conversations=shown,
        more=more,
        beside=other.name if other is not None else None,
        searched=seen["searched"] if wanted.text else None,
        without=seen["without"],
        too_large=seen["too_large"],
        unsearched=seen["unsearched"] > 0,
        problems=problems,
        is_empty=not found and next(iter(run.samples(None, None)), None) is None,
    )


def _opened(reference: str, client: Callable[[], PlatformClient], held: ExitStack) -> RunConversations:
    found = resolve_run(reference, client=client, downloads=True)
    if found.directory is not None:
        directory, cache = held.enter_context(laid_out(found.directory))
        return held.enter_context(LocalConversations(directory, place=found.place, cache=cache))
    scratch = held.enter_context(TemporaryDirectory(prefix="osmosis-show-"))
    return PlatformConversations(client(), found.name, Path(scratch))


def _search(
    run: RunConversations, samples: Iterator[SampleEntry], text: str, seen: Counter[str]
) -> Iterator[tuple[SampleEntry, StoredConversation]]:
    """Yield the samples with a text, and count which conversations were searched for it."""
    from osmosis_ai.viewer.conversations import contains_text

    while piece := list(islice(samples, _AT_ONCE)):
        if seen.total() >= MOST_SEARCHED:
            seen["unsearched"] += 1
            return
        for sample, stored in zip(piece, run.conversations(piece), strict=True):
            is_large = stored.size > LARGEST_CONVERSATION_BYTES
            missing = "too_large" if is_large else "without"
            seen["searched" if stored.content is not None else missing] += 1
            said = (sample.input, sample.output, sample.error)
            if any(text in each.casefold() for each in said if each) or (
                stored.content is not None and contains_text(stored.content, text)
            ):
                yield sample, stored


def _shown(
    run: RunConversations, sample: SampleEntry, stored: StoredConversation, other: RunConversations | None
) -> ShownConversation:
    beside = None
    if other is not None and (same := other.same_row(sample)) is not None:
        beside = _shown(other, same, other.conversations([same])[0], None)
    return ShownConversation(run.name, run.detail(sample), stored, conversation_in(stored), beside)
