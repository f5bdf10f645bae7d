"""What the journal keeps of an agent loop beside its reward."""

from __future__ import annotations

from typing import Any

import pytest

from osmosis_ai.datasets import DatasetRow
from osmosis_ai.driving.attempts import Attempt, AttemptResult
from osmosis_ai.driving.call_record import RolloutUsage
from osmosis_ai.driving.classify import Verdict, failed
from osmosis_ai.evaluation.record import TerminalRecord
from osmosis_ai.evaluation.recording import record_of
from osmosis_ai.redaction import Redactor
from osmosis_ai.rollout.types import GraderCompleteRequest, GraderStatus, RolloutSample


def recorded(extra_fields: dict[str, Any], verdict: Verdict) -> TerminalRecord:
    row = DatasetRow(0, [{"role": "user", "content": "hi"}], "ok", None)
    sample = RolloutSample(extra_fields=extra_fields)
    result = AttemptResult(
        Attempt(row, 0, 0, lambda _: 0),
        "r1",
        verdict,
        RolloutUsage(),
        1.0,
        GraderCompleteRequest(status=GraderStatus.SUCCESS, sample=sample),
    )
    record = record_of(result, Redactor(["the-secret-key"]))
    assert TerminalRecord.from_line(record.to_line()) == record
    return record


def test_scores_reasons_and_the_end_of_an_agent_loop_are_kept_and_read_again() -> None:
    said = {
        "scores": {"rewards:exact": 1.0, "agent": 0.5},
        "unscored": {"rewards:judge": "RuntimeError: the-secret-key was refused"},
        "finish_reason": "max_turns",
    }
    record = recorded({"agent_loop": said}, Verdict("success", reward=1.0))
    assert record.scores == {"rewards:exact": 1.0, "agent": 0.5}
    assert record.unscored is not None
    assert list(record.unscored) == ["rewards:judge"]
    assert "the-secret-key" not in record.unscored["rewards:judge"]
    assert record.finish_reason == "max_turns"
    long = {"finish_reason": "the-secret-key " * 999, "unscored": {"a": "x" * 9999}}
    record = recorded({"agent_loop": long}, Verdict("success", reward=1.0))
    assert len(record.finish_reason or "") == 200 and "the-secret-key" not in (record.finish_reason or "")
    assert record.unscored is not None and len(record.unscored["a"]) == 2000
    assert recorded({"agent_loop": said}, failed("agent_error", "grader", "no judge")).scores is None


def test_a_record_fits_an_exchange_however_much_a_rollout_says() -> None:
    many = {f"function-{number}": 1.0 for number in range(200_000)}
    why = dict.fromkeys(many, "花" * 2000)
    said = {"scores": many, "unscored": why, "finish_reason": "x" * 10**6}
    record = recorded({"agent_loop": said}, Verdict("success", reward=1.0))
    assert len(record.to_line()) < 256 << 10
    assert record.scores is not None and list(record.scores)[:2] == ["function-0", "function-1"]
    assert record.unscored is not None and 5 < len(record.unscored) < 50
    left_out = 400_000 - len(record.scores) - len(record.unscored)
    told = (
        f"Of its scores, and of why there are none, {left_out:,} are not kept: those of a sample have 64 KiB."
    )
    assert record.notes == told
    noted = recorded(
        {"agent_loop": said, "grader_notes": {"notes": "y" * 2000}}, Verdict("success", reward=1.0)
    )
    assert noted.notes is not None and len(noted.notes) == 2000
    assert noted.notes.startswith("yyy") and noted.notes.endswith("y\n" + told)


@pytest.mark.parametrize(
    "said",
    [
        None,
        "x",
        {"scores": [1], "unscored": 3},
        {"scores": {"a": "1", "b": float("inf")}, "unscored": {"c": 1}},
    ],
)
def test_what_a_users_grader_writes_under_the_same_key_is_no_outcome(said: Any) -> None:
    record = recorded({"agent_loop": said}, Verdict("success", reward=1.0))
    assert (record.scores, record.unscored, record.finish_reason) == (None, None, None)
    assert b"scores" not in record.to_line()


@pytest.mark.parametrize(
    "line",
    [
        b'"scores":[1]',
        b'"scores":{"a":"1"}',
        b'"unscored":{"a":1}',
        b'"finish_reason":3',
        b'"parts":{"a":"1"}',
        b'"input":[1]',
    ],
)
def test_a_damaged_line_is_refused(line: bytes) -> None:
    whole = recorded({}, Verdict("success", reward=1.0)).to_line()
    with pytest.raises(ValueError, match="cannot be"):
        TerminalRecord.from_line(b"{" + line + b"," + whole[1:])


def test_what_judges_said_and_cost_is_kept_without_secrets() -> None:
    given = [
        {"model": "openai/j", "score": 0.5, "explanation": "the-secret-key is " + "x" * 9999},
        {"model": "openai/j", "error": "too slow", "score": float("nan"), "other": 1},
    ]
    said = {"calls": 9, "tokens": 100, "cost_usd": 0.25, "judgements": given * 9}
    record = recorded({"judge_calls": said}, failed("agent_error", "grader", "broke"))
    assert (record.judge_calls, record.judge_tokens, record.judge_cost_usd) == (9, 100, 0.25)
    assert record.judgements is not None and len(record.judgements) == 4
    first, second = record.judgements[:2]
    assert first["score"] == 0.5 and len(first["explanation"]) == 2000
    assert "the-secret-key" not in first["explanation"]
    assert second == {"model": "openai/j", "error": "too slow"}


@pytest.mark.parametrize(
    "said",
    [
        "mine",
        {"calls": 0, "tokens": 1},
        {"calls": -1, "tokens": 1},
        {"calls": 10**30, "tokens": 1},
        {"calls": True, "tokens": 1},
        {"calls": 1, "tokens": 10**30},
        {"calls": 1, "tokens": None},
    ],
)
def test_what_is_no_count_of_judge_calls_is_read_as_none(said: Any) -> None:
    record = recorded({"judge_calls": said}, Verdict("success", reward=1.0))
    assert (record.judge_calls, record.judge_tokens, record.judge_cost_usd, record.judgements) == (None,) * 4


def test_what_a_grader_noted_is_kept_without_secrets() -> None:
    said = {"notes": "the-secret-key \ud800 " + "x" * 1900, "parts": {"the-secret-key": 1, "b": 0.5}}
    record = recorded({"grader_notes": said}, Verdict("success", reward=1.0))
    assert record.notes is not None and "the-secret-key" not in record.notes
    assert record.parts is not None and sorted(record.parts.values()) == [0.5, 1.0]
    assert "the-secret-key" not in record.parts
    record = recorded({"grader_notes": {"notes": 3, "parts": {"a": 1}}}, Verdict("success", reward=1.0))
    assert (record.notes, record.parts) == (None, None)


def test_a_strange_cost_or_list_of_judgements_leaves_the_counts() -> None:
    said = {"calls": 1, "tokens": 2, "cost_usd": -1.0, "judgements": [3, {}, {"score": 10**400}]}
    record = recorded({"judge_calls": said}, Verdict("success", reward=1.0))
    assert (record.judge_calls, record.judge_tokens, record.judge_cost_usd, record.judgements) == (
        1,
        2,
        None,
        None,
    )
