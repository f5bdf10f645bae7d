"""When it is enough: what is counted of a run's jobs that ended one after the other without getting anything done."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from osmosis_ai.platform.runs.desk.closing import FRUITLESS
from osmosis_ai.platform.runs.execute.executor import Fault, JobState

SETBACKS = 3
"""Failures of our own in a row after which a run fails."""
LONGEST_PAUSE_S = 300.0
_MOST_DOUBLED = 20


@dataclass
class FailureStreak:
    """Ends in a row without progress: against whom they count, and when to try again."""

    first_pause_s: float
    ends: Counter[Fault] = field(default_factory=Counter)
    not_before: float = 0.0
    gathers_from: float = 0.0
    verdict: str | None = None

    def add(self, fault: Fault, now: float) -> None:
        """Count another end at ``now``, in monotonic seconds."""
        self.ends[fault] += 1
        self.not_before = now + self.pause_s()

    def begin_anew(self, now: float) -> None:
        """Take note of an end at ``now`` that came when something had been done: it is none of those that are counted."""
        self.ends.clear()
        self.not_before = now + self.pause_s()

    def pause_s(self) -> float:
        """Return for how long nothing is tried: twice as long each time, up to a bound."""
        before = min(max(0, sum(self.ends.values()) - 1), _MOST_DOUBLED)
        return float(min(LONGEST_PAUSE_S, self.first_pause_s * 2**before))

    def is_paused(self, now: float) -> bool:
        """Tell whether nothing is to be tried at ``now``, in monotonic seconds."""
        return self.verdict is not None or now < self.not_before

    def is_hopeless(self, kind: str) -> bool:
        """Tell whether the next job of a run of this kind would come to nothing, either."""
        return self.ends["run"] >= FRUITLESS[kind] or self.ends["ours"] >= SETBACKS

    def retry_sentence(self, state: JobState, *, is_free: bool) -> str:
        """Return how the last job ended, and when another follows."""
        again = f"trying again in {self.pause_s():g} s" + ("" if is_free else ", or when its lease has ended")
        if state.fault == "ours":
            tries = f", {self.ends['ours']} of {SETBACKS} tries" if self.ends["ours"] else ""
            return f"{state.told} (no fault of the run{tries}; {again})"
        return f"{state.told}{self._times(state.fault)}; {again}"

    def failure_sentence(self, state: JobState, *, goes_on: bool, why: str | None = None) -> str:
        """Return why a run has failed; of one that can go on, the desk adds how."""
        if state.fault == "ours":
            return f"{state.told}."
        advice = "." if goes_on else ", then submit again."
        told = f"{state.told}{self._times(state.fault)}; see {state.log}{advice}"
        return told if why is None else f"{why} {told[:1].upper()}{told[1:]}"

    def _times(self, fault: Fault) -> str:
        deaths = self.ends["run"]
        if fault == "nobody" or deaths < 2:
            return ""
        return f", {deaths} times in a row without getting anything done"
