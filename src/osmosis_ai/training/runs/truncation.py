"""Treatment of rollouts truncated by a length limit or the agent's time limit.

Excluding them gives the policy no signal against long answers. A zero teaches it to be short. Grading them as they are
rewards what was right so far. The run chooses (`[advanced].on_truncation`, `on_timeout`). Validation always grades the
truncated result.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec

from osmosis_ai.controller.outcomes import Verdict
from osmosis_ai.rollout.types.protocol import RolloutErrorCategory

if TYPE_CHECKING:
    from osmosis_ai.config.training import TrainingSettings, WhenCutOff
    from osmosis_ai.training.runs.sampler import Sample

TRUNCATED = "truncated"
_TIMEOUT = RolloutErrorCategory.TIMEOUT.value
# Whose time it was: a grader, or a server, that is too slow says nothing of the policy.
_AGENT_SOURCES = frozenset({"agent", "provider"})


def timed_out(sample: Sample) -> bool:
    """Tell whether the agent ran out of time."""
    return sample.record.error_type == _TIMEOUT and sample.record.boundary in _AGENT_SOURCES


def with_truncation_rule(sample: Sample, settings: TrainingSettings) -> Sample:
    """Return ``sample`` with the reward that is learned from; one that its grader removed stays removed."""
    if sample.record.status == "skipped":
        return sample
    if timed_out(sample):
        return _by_rule(sample, settings.on_timeout, _TIMEOUT)
    if sample.recorded.truncated:
        return _by_rule(sample, settings.on_truncation, TRUNCATED)
    return sample


def _by_rule(sample: Sample, rule: WhenCutOff, reason: str) -> Sample:
    if rule == "zero":
        return _with_verdict(sample, Verdict("success", reward=0.0))
    if rule == "exclude":
        error = sample.record.error or f"the rollout was {reason} and is left out"
        return _with_verdict(sample, Verdict("failed", error_type=reason, boundary="agent", error=error))
    if sample.reward is None and sample.grader_reward is not None:
        return _with_verdict(sample, Verdict("success", reward=sample.grader_reward))
    return sample


def _with_verdict(sample: Sample, verdict: Verdict) -> Sample:
    return replace(sample, record=msgspec.structs.replace(sample.record, **verdict._asdict()))
