"""What the run queue must do, in memory: one run, its shards, and everything that was acknowledged.

Each method mirrors a call and is given the present moment. It changes the model and returns what the platform must
answer, or raises :class:`Refusal` and changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from osmosis_ai.api.models.workers import JOURNAL_DIVERGED, JOURNAL_OFFSET, LEASE_LOST
from osmosis_ai.controller.record import TerminalRecord
from osmosis_ai.evaluation.attempt_files import item_name
from tests.platform.fake_worker import journal_of

TERM = timedelta(seconds=30)
MOST_FAILURES = 3
FIRST_PAUSE = timedelta(seconds=0.5)
SAME_REASON_PAUSE = timedelta(seconds=10)
LONGEST_PAUSE = timedelta(minutes=5)
CLOCK_SLACK = timedelta(seconds=1)
Attempt = tuple[int, int]
"""Row and number of the attempt."""


class Refusal(Exception):
    """The code that the platform must refuse a call with."""


@dataclass
class Shard:
    """A shard; ``token`` is copied from the platform when somebody claims it."""

    kind: str
    attempts: frozenset[Attempt] = frozenset()
    id: str = ""
    status: str = "pending"
    token: str | None = None
    claim_id: str | None = None
    expires: datetime | None = None
    not_before: datetime | None = None
    failures: int = 0
    has_reason: bool = False
    """Whether the last release gave a reason, and no line was accepted since."""
    journal: bytes = b""
    log_lines: int = 0

    @property
    def is_open(self) -> bool:
        return self.status in ("pending", "running")

    def is_free(self, now: datetime) -> bool:
        return self.is_open and is_over(self.expires, now, TERM)

    def is_claimable(self, now: datetime) -> bool:
        return self.is_free(now) and is_over(self.not_before, now, LONGEST_PAUSE)

    def end(self, status: str) -> None:
        self.status, self.expires = status, None

    def put_back(self, now: datetime, *, has_reason: bool, counts: bool) -> None:
        """Make the shard pending; a reason delays its next claim."""
        pause = FIRST_PAUSE * 2 ** max(0, self.failures - 1)
        if self.has_reason and not counts:
            pause = SAME_REASON_PAUSE
        self.end("pending")
        self.has_reason, self.not_before = has_reason, now + pause if has_reason else None


@dataclass
class RunModel:
    """An evaluation of so many rows, with ``n`` attempts each, for up to so many workers."""

    rows: int
    n: int
    workers: int
    status: str = "pending"
    revision: int = 0
    stops: bool = False
    fails: bool = False
    shards: list[Shard] = field(default_factory=lambda: [Shard("prepare")])
    listed: list[Attempt] | None = None
    """The attempts of a retry."""
    accepted: int = 0
    reopened_at: int = 0
    samples: dict[Attempt, tuple[int, TerminalRecord]] = field(default_factory=dict)
    """By attempt, its position and its record."""
    files: dict[str, tuple[bytes, int]] = field(default_factory=dict)
    """By path, the content and the revision of the run that wrote it."""
    former: bytes = b""
    """The journal of the run before it was retried."""
    logged: list[str] = field(default_factory=list)
    endings: int = 0

    @property
    def is_ended(self) -> bool:
        return self.status not in ("pending", "running")

    @property
    def is_ending(self) -> bool:
        return self.stops or self.fails

    @property
    def journal(self) -> bytes:
        """Every acknowledged line."""
        return self.former + b"".join(shard.journal for shard in self.shards)

    @property
    def attempts(self) -> list[Attempt]:
        return [(row, number) for row in range(self.rows) for number in range(self.n)]

    @property
    def unscored(self) -> list[Attempt]:
        """The attempts that a retry repeats."""
        done = {attempt for attempt, (_, each) in self.samples.items() if is_done(each)}
        return [attempt for attempt in self.attempts if attempt not in done]

    # -- calls of workers ------------------------------------------------------------------------------

    def claim(self, claim_id: str, now: datetime) -> Shard | None:
        for shard in self.shards:
            if shard.claim_id == claim_id:
                if shard.status != "running":
                    raise Refusal("CONFLICT")
                shard.expires = now + TERM
                return shard
        for shard in self.shards:
            if shard.kind != "work" or self.is_ending or not shard.is_claimable(now):
                continue
            if shard.status == "running":
                shard.failures += 1
                if shard.failures >= MOST_FAILURES:
                    self._end(shard, "failed", now)
                    continue
            self.status = "running"
            self._own(shard, now)
            shard.claim_id = claim_id
            return shard
        return None

    def sync(
        self,
        shard_id: str,
        token: str,
        offset: int,
        written: Sequence[TerminalRecord],
        files: Mapping[str, bytes],
        logs: tuple[int, list[str]],
        now: datetime,
    ) -> Shard:
        shard = self._known(shard_id, token)
        if shard.status != "running":
            raise Refusal(LEASE_LOST)
        if any((each.row_index, each.run_index) not in shard.attempts for each in written):
            raise Refusal("CONFLICT")
        names = {item_name(*each) for each in shard.attempts}
        if any(path.split("/")[1].removesuffix(".json") not in names for path in files):
            raise Refusal("CONFLICT")
        if offset > len(shard.journal):
            raise Refusal(JOURNAL_OFFSET)
        sent = journal_of(written)
        if not sent.startswith(shard.journal[offset : offset + len(sent)]):
            raise Refusal(JOURNAL_DIVERGED)
        if self._scores_again(shard, offset, written):
            raise Refusal("CONFLICT")
        end = offset
        for each in written:
            end += len(each.to_line())
            if end > len(shard.journal):
                self.accepted += 1
                self.samples[each.row_index, each.run_index] = (self.accepted, each)
                shard.journal += each.to_line()
                shard.failures, shard.has_reason = 0, False
        self.files.update({path: (content, self.revision) for path, content in files.items()})
        first, messages = logs
        self.logged += messages[max(0, shard.log_lines - first) :]
        shard.log_lines = max(shard.log_lines, first + len(messages))
        shard.expires = now + TERM
        return shard

    def finish(self, shard_id: str, token: str, outcome: str, now: datetime) -> str:
        shard = self._known(shard_id, token)
        if shard.status == "pending":
            raise Refusal(LEASE_LOST)
        if shard.status == "running":
            new = {attempt for attempt, (position, _) in self.samples.items() if position > self.reopened_at}
            if shard.attempts - new and not self.fails:
                outcome = "failed"
            self._end(shard, "stopped" if self.stops else outcome, now)
        return shard.status

    def release(self, shard_id: str, token: str, has_reason: bool, counts: bool, now: datetime) -> str:
        shard = self._known(shard_id, token)
        if shard.status == "running":
            shard.failures += counts
            if counts and shard.failures >= MOST_FAILURES:
                self._end(shard, "failed", now)
                return shard.status
            shard.put_back(now, has_reason=has_reason, counts=counts)
            self._advance(now)
        return shard.status

    # -- users -----------------------------------------------------------------------------------------

    def stop(self, now: datetime) -> None:
        self.stops = True
        self._advance(now)

    def retry(self) -> None:
        self.former, self.listed = self.journal, self.unscored
        self.status, self.stops, self.fails = "pending", False, False
        self.revision += 1
        self.reopened_at = self.accepted
        self.shards = [Shard("prepare")]

    # -- the platform ----------------------------------------------------------------------------------

    def extend_all(self, now: datetime) -> None:
        for shard in self.shards:
            if shard.status == "running":
                shard.expires = now + TERM

    def take(self, now: datetime) -> Shard | None:
        """Return the shard that the platform takes for itself."""
        for shard in self.shards:
            is_ready = shard.kind == "finalize" or (shard.kind == "prepare" and not self.is_ending)
            if is_ready and shard.is_claimable(now):
                self._own(shard, now)
                return shard
        return None

    def close_stopped(self, now: datetime) -> None:
        if self.is_ending and any(each.kind != "finalize" and each.is_free(now) for each in self.shards):
            self._advance(now)

    def settle(self, now: datetime) -> None:
        """Let the platform do everything that it can do by itself."""
        self.close_stopped(now)
        while (shard := self.take(now)) is not None:
            self.execute(shard, now)

    def execute(self, shard: Shard, now: datetime) -> None:
        """Execute a shard that the platform has taken."""
        if shard.kind == "prepare":
            self._end(shard, "stopped" if self.stops else "finished", now)
            return
        shard.end("finished")
        repeated = {item_name(*each) for each, (at, _) in self.samples.items() if at > self.reopened_at}
        for path, (_, revision) in list(self.files.items()):
            if revision < self.revision and path.split("/")[1].removesuffix(".json") in repeated:
                del self.files[path]
        self._end_run()

    def _scores_again(self, shard: Shard, offset: int, written: Sequence[TerminalRecord]) -> bool:
        """Whether a new record is one of an attempt that has a score."""
        scored = {attempt for attempt, (_, each) in self.samples.items() if each.reward is not None}
        for each in written:
            offset += len(each.to_line())
            if offset <= len(shard.journal):
                continue
            if (each.row_index, each.run_index) in scored:
                return True
            if each.reward is not None:
                scored.add((each.row_index, each.run_index))
        return False

    def _known(self, shard_id: str, token: str) -> Shard:
        for shard in self.shards:
            if (shard.id, shard.token) == (shard_id, token):
                return shard
        raise Refusal(LEASE_LOST)

    def _own(self, shard: Shard, now: datetime) -> None:
        shard.status, shard.expires, shard.not_before = "running", now + TERM, None
        shard.token, shard.log_lines = None, 0

    def _end(self, shard: Shard, status: str, now: datetime) -> None:
        shard.end(status)
        self.fails |= status == "failed" and not self.stops
        self._advance(now)

    def _advance(self, now: datetime) -> None:
        if self.is_ended:
            return
        for shard in self.shards:
            if self.is_ending and shard.kind != "finalize" and shard.is_free(now):
                shard.end("stopped")
        if any(shard.is_open for shard in self.shards):
            return
        if [shard.status for shard in self.shards] == ["finished"]:
            self.shards += self._work_shards()
        elif self.status == "pending":
            self._end_run()
        else:
            self.shards.append(Shard("finalize"))

    def _work_shards(self) -> list[Shard]:
        listed = self.attempts if self.listed is None else self.listed
        rows = list(dict.fromkeys(row for row, _ in listed))
        count = min(self.workers, len(rows))
        parts = [rows[number::count] for number in range(count)]
        return [Shard("work", frozenset(each for each in listed if each[0] in part)) for part in parts]

    def _end_run(self) -> None:
        self.status = "stopped" if self.stops else "failed" if self.fails else "finished"
        self.endings += 1


def is_over(until: datetime | None, now: datetime, longest: timedelta) -> bool:
    """Whether a moment has passed, or lies further ahead than it was ever set because the clock was set back."""
    return until is None or until <= now or until > now + longest + CLOCK_SLACK


def is_done(record: TerminalRecord) -> bool:
    """Whether a retry leaves an attempt alone."""
    return record.status == "skipped" or (record.status == "success" and record.reward is not None)
