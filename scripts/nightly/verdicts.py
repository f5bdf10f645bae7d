"""Checks of runs: accepted records are kept, and the results equal those of an undisturbed run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.e2e.platform_process import Run
from tests.e2e.test_demo_platform import numbers, samples
from tests.e2e.test_platform_kill import published

Item = tuple[int, int]
_STATE = """
SELECT status, (SELECT coalesce(sum(attempt), 0) FROM run_shards WHERE run_id = runs.id AND kind = 'work'), error
FROM runs WHERE id = %s
"""
_ACCEPTED = "SELECT row_index, run_index, rollout_id FROM samples WHERE run_id = %s"


@dataclass
class RowOfRun:
    """The state of a run in the database; ``accepted`` has the rollout id of each recorded attempt."""

    status: str
    attempt: int
    error: str | None
    accepted: dict[Item, str]


class Ledger:
    """Reads accepted records from the platform's database (a URL)."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._connection: Any = None

    def read(self, run_id: str) -> RowOfRun | None:
        """Return the state of a run; None while the database is unavailable."""
        import psycopg

        with suppress(psycopg.Error):
            if self._connection is None or self._connection.closed:
                self._connection = psycopg.connect(
                    self._url, autocommit=True, options="-c statement_timeout=2000"
                )
            found = self._connection.execute(_STATE, [run_id]).fetchone()
            rows = self._connection.execute(_ACCEPTED, [run_id]).fetchall()
            return RowOfRun(*found, {(row, attempt): rollout for row, attempt, rollout in rows})
        if self._connection is not None:
            self._connection.close()
        return None

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()


@dataclass
class Tally:
    """The results of one kind of fault; ``takeovers`` in seconds."""

    done: int = 0
    counted: int = 0
    lost: int = 0
    doubled: int = 0
    takeovers: list[float] = field(default_factory=list)


@dataclass
class Verdicts:
    """All results: tallies by kind of fault, and violations, one sentence each."""

    tallies: dict[str, Tally] = field(default_factory=dict)
    violations: list[str] = field(default_factory=list)
    slowest_rest_s: float = 0.0
    slowest_outlived_s: float = 0.0

    def of(self, kind: str) -> Tally:
        """Return the tally of a kind of fault."""
        return self.tallies.setdefault(kind, Tally())

    def violate(self, sentence: str) -> None:
        """Record and print a violation."""
        self.violations.append(sentence)
        print(f"  VIOLATION: {sentence}", flush=True)

    def table(self) -> str:
        """Return the tallies as a table."""
        lines = [f"{'kind':<12}{'done':>6}{'counted':>9}{'lost':>6}{'doubled':>9}{'slowest takeover':>18}"]
        for kind, tally in sorted(self.tallies.items()):
            slowest = f"{max(tally.takeovers):.1f} s of {len(tally.takeovers)}" if tally.takeovers else "-"
            lines.append(
                f"{kind:<12}{tally.done:>6}{tally.counted:>9}{tally.lost:>6}{tally.doubled:>9}{slowest:>18}"
            )
        return "\n".join(lines)


class RunWatch:
    """An active run and its accepted records; adds to ``verdicts``."""

    def __init__(self, run: Run, verdicts: Verdicts) -> None:
        self.run = run
        self.accepted: dict[Item, str] = {}
        self.status, self.attempt = "pending", 0
        self.last_kind = "none"
        self._verdicts = verdicts

    @property
    def is_over(self) -> bool:
        """Whether it has ended."""
        return self.status in ("finished", "failed", "stopped")

    def update(self, row: RowOfRun) -> None:
        """Check that no accepted record was lost or changed."""
        gone = {item for item, rollout in self.accepted.items() if row.accepted.get(item) != rollout}
        if gone:
            self._verdicts.of(self.last_kind).lost += len(gone)
            self._verdicts.violate(
                f"{self.run.name}: {len(gone)} accepted records were lost or changed: {sorted(gone)[:5]}"
            )
        self.accepted = row.accepted
        self.status, self.attempt = row.status, row.attempt

    def compare(self, calm: Run, results: int) -> None:
        """Compare a finished run with the undisturbed one."""
        name, violate = self.run.name, self._verdicts.violate
        self.compare_journal(results)
        if (mine := published(self.run.results)) != (theirs := published(calm.results)):
            other = [pair for pair in zip(mine, theirs) if pair[0] != pair[1]]  # noqa: B905 - one may be longer
            violate(f"{name}: its samples differ from those of the undisturbed run: {len(mine)}, {other[:3]}")
        if (mine_are := numbers(self.run.results)) != (calm_are := numbers(calm.results)):
            violate(f"{name}: its metrics differ: {differing(mine_are, calm_are)}")
        self._compare_conversations(calm)

    def compare_journal(self, results: int) -> None:
        """Check that every attempt is in the journal exactly once."""
        keys = journal_keys(self.run.results)
        if doubled := len(keys) - len(set(keys)):
            self._verdicts.of(self.last_kind).doubled += doubled
            self._verdicts.violate(f"{self.run.name}: {doubled} attempts are in its journal twice")
        if set(keys) != set(self.accepted) or len(set(keys)) != results:
            self._verdicts.violate(
                f"{self.run.name}: its journal has {len(set(keys))} of {results} samples, {len(self.accepted)} were accepted"
            )

    def _compare_conversations(self, calm: Run) -> None:
        mine, theirs = samples(self.run.results), samples(calm.results)
        if other := [each for each in mine if mine[each] != theirs.get(each)]:
            self._verdicts.violate(f"{self.run.name}: conversations differ: {other[:5]}")
        if missing := sorted(theirs.keys() - mine.keys()):
            self._verdicts.violate(
                f"{self.run.name}: {len(missing)} attempts have no conversation: {missing[:5]}"
            )


def journal_keys(results: Path) -> list[Item]:
    """Return the row and attempt of each record of a downloaded journal, in its order."""
    records = [json.loads(line) for line in (results / "events.jsonl").read_bytes().splitlines()]
    return [(record["row_index"], record["run_index"]) for record in records]


def differing(one: Any, other: Any, place: str = "") -> list[str]:
    """Return the paths at which two trees differ, with both values."""
    if isinstance(one, dict) and isinstance(other, dict):
        names: Sequence[str] = sorted({*one, *other})
        return [
            found for name in names for found in differing(one.get(name), other.get(name), f"{place}.{name}")
        ]
    return [] if one == other else [f"{place}: {one} != {other}"]
