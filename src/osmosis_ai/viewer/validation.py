"""The samples of a training run's newest validation, as a list's lines and as pages show them."""

from __future__ import annotations

from typing import Any

import msgspec

from osmosis_ai.controller.record import TerminalRecord
from osmosis_ai.training.runs.run_directory import ValidationSamples, reward_of
from osmosis_ai.viewer.source import SampleDetail, SampleEntry, no_sample

_SAME = (
    *("status", "row_digest", "tokens", "duration_ms", "model_latency_ms", "cost_usd"),
    *("boundary", "category", "error", "input", "output", "finish_reasons"),
)


def validated_record(samples: ValidationSamples | None, run: str, row: int, attempt: int) -> TerminalRecord:
    """Return the record of a sample."""
    kept = {(each.row_index, each.run_index): each for each in samples.records} if samples is not None else {}
    if (row, attempt) in kept:
        return kept[row, attempt]
    missing = no_sample(run, row, attempt, kept, subject=f"the newest validation of the run `{run[:100]}`")
    missing.hint = "its page lists those that are kept"
    raise missing


def known_of(record: TerminalRecord) -> dict[str, Any]:
    """Return what a journal's record says, by its names."""
    return {name: value for name, value in msgspec.structs.asdict(record).items() if value is not None}


def validated_entry(record: TerminalRecord, pass_threshold: float) -> SampleEntry:
    """Return a sample in a line."""
    reward = reward_of(record)
    return SampleEntry(
        row=record.row_index,
        attempt=record.run_index,
        passed=None if reward is None else reward >= pass_threshold,
        source_row=record.source_row_index,
        reward=reward,
        **{name: getattr(record, name) for name in _SAME},
    )


def validated_sample(samples: ValidationSamples | None, run: str, row: int, attempt: int) -> SampleDetail:
    """Return a sample, between those that are a little worse and a little better."""
    record = validated_record(samples, run, row, attempt)
    assert samples is not None
    entries = [validated_entry(each, samples.pass_threshold) for each in samples.records]
    place = next(at for at, each in enumerate(samples.records) if each is record)
    around = [None, *((each.row, each.attempt) for each in entries), None]
    return SampleDetail(
        entries[place],
        known_of(record),
        next=around[place + 2],
        previous=around[place],
        attempts=[each for each in entries if each.row == row],
    )
