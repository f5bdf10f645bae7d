"""`osmosis train show`: the conversations of a training run's newest validation, of this machine or of a platform.

A run keeps those of its newest validation alone: without a score first, then the worst.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from osmosis_ai.errors import NotFoundError
from osmosis_ai.evaluation.attempt_files import StoredConversation, no_sample
from osmosis_ai.evaluation.conversation import LARGEST_CONVERSATION_BYTES
from osmosis_ai.services.eval_runs.conversation_readers import of_outcome, told_entry
from osmosis_ai.services.eval_runs.show import ShownRun, WantedSamples, shown_samples
from osmosis_ai.services.training_runs.local_runs import training_directory
from osmosis_ai.viewer.source import Outcome, SampleDetail, SampleEntry

if TYPE_CHECKING:
    from pathlib import Path

    from osmosis_ai.api.client import PlatformClient
    from osmosis_ai.api.wire.training_runs import ValidationPage

_HINT = "a run that validates (`[checkpoints].eval_interval`) keeps the samples of its newest validation"


@dataclass(frozen=True)
class ShownValidation:
    """What was asked for of a validation.

    Attributes:
        step: after which it was made.
        total: how many samples it had; None where nobody says.
        kept: how many of them are kept, with their conversations.
    """

    run: ShownRun
    step: int
    total: int | None
    kept: int

    def data(self) -> dict[str, Any]:
        """Return it as scripts see it."""
        return {
            **self.run.data(),
            "validation": {"step": self.step, "samples": self.total, "kept": self.kept},
        }


@dataclass(frozen=True)
class _Validation:
    """The samples of a validation, as ``RunConversations``.

    Attributes:
        details: by row and attempt, in the order of the list.
        fetch: returns the conversation of a row and attempt.
    """

    name: str
    place: str
    step: int
    total: int | None
    details: Mapping[tuple[int, int], SampleDetail]
    fetch: Callable[[int, int], StoredConversation]
    extent: str | None = None

    @property
    def subject(self) -> str:
        of = f" of {self.total:,}" if self.total is not None else ""
        return f"the validation of `{self.name}` after step {self.step} ({len(self.details):,}{of} samples are kept)"

    def samples(self, row: int | None, outcome: Outcome | None) -> Iterator[SampleEntry]:
        entries = [each.summary for each in self.details.values() if row in (None, each.summary.row)]
        yield from of_outcome(entries, outcome)

    def detail(self, sample: SampleEntry) -> SampleDetail:
        return self.details[sample.row, sample.attempt]

    def conversations(self, samples: Sequence[SampleEntry]) -> Sequence[StoredConversation]:
        return [self.fetch(each.row, each.attempt) for each in samples]

    def no_sample(self, row: int, attempt: int | None) -> NotFoundError:
        missing = no_sample(self.name, row, attempt, self.details, subject=self.subject)
        missing.hint = "rows and attempts are numbered from 0"
        return missing

    def problems(self) -> Sequence[str]:
        return ()

    def same_row(self, sample: SampleEntry) -> SampleEntry | None:
        return (
            self.details[place].summary if (place := (sample.row, sample.attempt)) in self.details else None
        )


def show_validation(
    reference: str, wanted: WantedSamples, *, step: int | None, client: Callable[[], PlatformClient]
) -> ShownValidation:
    """Return conversations of a run's newest validation, the worst first.

    Args:
        reference: a training directory of this machine, else the name or id of a run of the platform.
        wanted: which.
        step: the validation that is meant; the newest when None.
        client: connects with the platform, when it has to be asked.

    Raises:
        NotFoundError: no validation, or no sample, of that kind is kept.
        OsmosisError: the record of it can not be read.
        PlatformError: the platform has no such run, or does not offer this; or as every call.
    """
    directory = training_directory(reference)
    found = _here(directory) if directory is not None else _there(client(), reference)
    if found is None:
        raise NotFoundError(f"the run `{reference}` has no record of a validation.", hint=_HINT)
    if step not in (None, found.step):
        raise NotFoundError(
            f"the samples of the validation after step {step} are not kept: the newest is that after step {found.step}.",
            hint="leave out --step: only the newest validation's samples are kept",
        )
    return ShownValidation(shown_samples(found, wanted), found.step, found.total, len(found.details))


def _here(directory: Path) -> _Validation | None:
    from osmosis_ai.evaluation.attempt_files import AttemptFiles
    from osmosis_ai.evaluation.run_directory import RunDirectory
    from osmosis_ai.training.runs.run_directory import TrainingDirectory
    from osmosis_ai.viewer.validation import known_of, validated_entry

    samples = TrainingDirectory(directory).read_validation()
    if samples is None:
        return None
    records = {(each.row_index, each.run_index): each for each in samples.records}

    def fetch(row: int, attempt: int) -> StoredConversation:
        files = AttemptFiles(RunDirectory(directory), records[row, attempt].rollout_id, row, attempt)
        return files.conversation(max_bytes=LARGEST_CONVERSATION_BYTES)

    details = {
        place: SampleDetail(validated_entry(record, samples.pass_threshold), known_of(record))
        for place, record in records.items()
    }
    return _Validation(directory.name, "file", samples.step, samples.total, details, fetch)


def _there(client: PlatformClient, name: str) -> _Validation | None:
    from osmosis_ai.api.capabilities import Capability
    from osmosis_ai.api.http_errors import PlatformError
    from osmosis_ai.services.capabilities import require_offered

    run = client.training_runs.get(name).training_run
    require_offered(client, Capability.TRAINING_VALIDATION)
    details: dict[tuple[int, int], SampleDetail] = {}
    step, total = None, None
    for page in _pages(client, run.id):
        step, total = page.step, page.total
        threshold = page.pass_threshold if page.pass_threshold is not None else 1.0
        for each in page.samples:
            noted = {"notes": each.notes, "parts": each.parts}
            details[each.row, each.attempt] = SampleDetail(told_entry(each, threshold), noted)
    if step is None:
        return None

    def fetch(row: int, attempt: int) -> StoredConversation:
        try:
            said = client.training_runs.validation_conversation(run.id, row, attempt)
        except PlatformError as error:
            if error.status != 404:
                raise
            return StoredConversation(None, missing="a newer validation has replaced it")
        content = said.text.encode("utf-8", "replace") if said.text is not None else None
        return StoredConversation(content, said.size, said.missing, whole="its page on the platform")

    return _Validation(run.name or run.id, "platform", step, total, details, fetch)


def _pages(client: PlatformClient, run_id: str) -> Iterator[ValidationPage]:
    """Yield what a platform lists, to its end or until a page comes again."""
    cursor: str | None = None
    seen: set[str | None] = {None}
    while True:
        page = client.training_runs.validation(run_id, cursor=cursor)
        yield page
        cursor = page.next_cursor
        if cursor in seen or not page.samples:
            return
        seen.add(cursor)
