"""Records, previews, the log and the index of a run, without secrets."""

from __future__ import annotations

import json
import os
import re
import threading
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import pytest

from osmosis_ai.controller.attempt import Attempt
from osmosis_ai.controller.model_proxy import RolloutUsage
from osmosis_ai.controller.outcomes import Verdict, failed
from osmosis_ai.controller.record import PREVIEW_CHARS, Previews, TerminalRecord, previews_of
from osmosis_ai.datasets import DatasetRow
from osmosis_ai.decisions.local_runs import read_local_samples
from osmosis_ai.errors import OsmosisError
from osmosis_ai.evaluation.journal import JournalCorruptionError
from osmosis_ai.evaluation.run_directory import IndexEntry, read_index
from osmosis_ai.evaluation.run_log import RunLog, redact_server_logs
from osmosis_ai.redaction import Redactor
from osmosis_ai.rollout import GraderCompleteRequest, GraderStatus, RolloutSample
from tests.controller.attempts import ended, record_of_ended
from tests.decisions.builders import write_journalled_run

PASSED = Verdict("success", reward=1.0)


def recorded(
    extra_fields: dict[str, Any], verdict: Verdict = PASSED, usage: RolloutUsage | None = None
) -> TerminalRecord:
    row = DatasetRow(0, [{"role": "user", "content": "hi"}], "ok", None)
    sample = RolloutSample(extra_fields=extra_fields)
    grader = GraderCompleteRequest(status=GraderStatus.SUCCESS, sample=sample)
    running = ended(Attempt(row, 0, 0, lambda _: 0), "r1", grader=grader, usage=usage)
    record = record_of_ended(running, verdict, Redactor(["the-secret-key"]))
    assert TerminalRecord.from_line(record.to_line()) == record
    return record


def test_agent_loop_scores_and_finish_reason() -> None:
    said = {
        "scores": {"rewards:exact": 1.0, "agent": 0.5},
        "unscored": {"rewards:judge": "RuntimeError: the-secret-key was refused"},
        "finish_reason": "max_turns",
    }
    record = recorded({"agent_loop": said})
    assert record.scores == {"rewards:exact": 1.0, "agent": 0.5}
    assert record.unscored is not None
    assert list(record.unscored) == ["rewards:judge"]
    assert "the-secret-key" not in record.unscored["rewards:judge"]
    assert record.finish_reason == "max_turns"
    long = {"finish_reason": "the-secret-key " * 999, "unscored": {"a": "x" * 9999}}
    record = recorded({"agent_loop": long})
    assert len(record.finish_reason or "") == 200 and "the-secret-key" not in (record.finish_reason or "")
    assert record.unscored is not None and len(record.unscored["a"]) == 2000
    assert recorded({"agent_loop": said}, failed("agent_error", "grader", "no judge")).scores is None


def test_record_size_is_limited() -> None:
    many = {f"function-{number}": 1.0 for number in range(20_000)}
    why = dict.fromkeys(many, "花" * 2000)
    said = {"scores": many, "unscored": why, "finish_reason": "x" * 10**6}
    record = recorded({"agent_loop": said})
    assert len(record.to_line()) < 256 << 10
    assert record.scores is not None and list(record.scores)[:2] == ["function-0", "function-1"]
    assert record.unscored is not None and 5 < len(record.unscored) < 50
    left_out = 40_000 - len(record.scores) - len(record.unscored)
    told = f"{left_out:,} scores or reasons are left out (limit: 64 KiB per attempt)."
    assert record.notes == told
    noted = recorded({"agent_loop": said, "grader_notes": {"notes": "y" * 2000}})
    assert noted.notes is not None and len(noted.notes) == 2000
    assert noted.notes.startswith("yyy") and noted.notes.endswith("y\n" + told)


@pytest.mark.parametrize(
    "said",
    [
        None,
        "x",
        {"scores": [1], "unscored": 3},
        {"scores": {"a": "1", "b": float("inf"), "c": float("nan"), "d": 10**400}, "unscored": {"c": 1}},
    ],
)
def test_invalid_agent_loop_fields_are_ignored(said: Any) -> None:
    record = recorded({"agent_loop": said})
    assert (record.scores, record.unscored, record.finish_reason) == (None, None, None)
    assert b"scores" not in record.to_line()


def test_invented_names_are_cleaned() -> None:
    said = {
        "scores": {"the-secret-key": 1.0, "\ud800": 0.5},
        "unscored": {"the-secret-key\ud800": "why\ud800"},
        "finish_reason": "stop\ud800",
    }
    record = recorded({"agent_loop": said})
    assert (record.scores, record.unscored) == ({"[REDACTED]": 1.0, "?": 0.5}, {"[REDACTED]?": "why?"})
    assert record.finish_reason == "stop?"
    assert recorded({}, failed("agent_error", "agent", "boom \ud800")).error == "boom ?"


@pytest.mark.parametrize("tokens", [2**31 - 1, 2**31, 10**12])
def test_impossible_token_counts_are_unknown(tokens: int) -> None:
    usage = RolloutUsage(calls=1, prompt_tokens=tokens, total_tokens=tokens)
    record = recorded({}, usage=usage)
    assert (record.tokens is None) == (tokens >= 2**31) and record.model_calls == 1
    line = IndexEntry(row_index=0, run_index=0, rollout_id="0" * 32, status="success", tokens=record.tokens)
    assert read_index([line.to_line()], rows=1, n=1)


def test_judge_calls_without_secrets() -> None:
    given = [
        {"model": "openai/j", "score": 0.5, "explanation": "the-secret-key is " + "x" * 9999},
        {"model": "openai/j", "error": "too slow", "other": 1},
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
        {"calls": 1, "tokens": 1, "cost_usd": -1.0},
        {"calls": 1, "tokens": 1, "judgements": [{"model": 3}]},
        {"calls": 1, "tokens": 1, "judgements": [{"score": float("nan")}]},
        {"calls": 1, "tokens": 1, "outside_scale": 2},
    ],
)
def test_invalid_judge_calls_are_ignored(said: Any) -> None:
    record = recorded({"judge_calls": said})
    assert (record.judge_calls, record.judge_tokens, record.judge_cost_usd, record.judgements) == (None,) * 4


def test_grader_notes_without_secrets() -> None:
    said = {"notes": "the-secret-key \ud800 " + "x" * 1900, "parts": {"the-secret-key": 1, "b": 0.5}}
    record = recorded({"grader_notes": said})
    assert record.notes is not None and "the-secret-key" not in record.notes
    assert record.parts is not None and sorted(record.parts.values()) == [0.5, 1.0]
    assert "the-secret-key" not in record.parts
    record = recorded({"grader_notes": {"notes": 3, "parts": {"a": 1}}})
    assert (record.notes, record.parts) == (None, None)


NOTHING = Redactor()


def said(role: str, content: Any) -> dict[str, Any]:
    return {"role": role, "content": content}


def test_previews() -> None:
    messages = [
        said("system", "be brief"),
        said("user", "  two\n\ttimes   two? "),
        said("assistant", "four"),
        said("user", "sure?"),
        said("assistant", [{"type": "output_text", "text": "yes,"}, {"type": "text", "text": "four"}]),
        said("assistant", None),
        said("tool", "42"),
    ]
    assert previews_of(messages, NOTHING) == Previews("two times two?", "yes, four")

    assert previews_of([], NOTHING, prompt=[said("user", "hi")]) == Previews("hi", None)
    assert previews_of([], NOTHING) == Previews()

    shown = previews_of([said("user", "\ud800" + "x" * 5_000_000)], NOTHING).input
    assert shown is not None and len(shown) == PREVIEW_CHARS and shown.endswith("x…")
    assert shown.encode()
    assert previews_of([said("user", "x" * PREVIEW_CHARS)], NOTHING).input == "x" * PREVIEW_CHARS


@pytest.mark.parametrize("odd", [None, 3, {"text": "x"}, [3, {"type": "image"}], "", " \n", [{"text": None}]])
def test_previews_skip_non_text(odd: Any) -> None:
    shown = previews_of([said("user", odd), said("user", "then"), {"role": odd}], NOTHING)
    assert shown.input == "then"


@pytest.mark.parametrize("before", [0, 150, 500, 4090, 4600])
def test_previews_contain_no_secret(before: int) -> None:
    secret = "canary-1234567890"
    text = "x" + " " * before + secret + " and on " * 3000
    shown = previews_of([said("user", text), said("assistant", text)], Redactor([secret]))
    for line in (shown.input, shown.output):
        assert line is None or "canary" not in line


def test_log_line(tmp_path: Path) -> None:
    log = RunLog(tmp_path / "logs.txt", Redactor())
    log.write("server", "two\nlines", level="WARNING", port=80, nothing=None)
    log.close()
    line = (tmp_path / "logs.txt").read_text()
    match = re.fullmatch(r"(\S+Z) WARNING \[server\] two lines (\{.*\})\n", line)
    assert match
    assert json.loads(match[2]) == {"port": 80}
    assert (tmp_path / "logs.txt").stat().st_mode & 0o077 == 0


def test_log_redacts_longest_secret_first(tmp_path: Path) -> None:
    seen: list[str] = []
    redact = Redactor(["tokens", "tokens-and-more"])
    log = RunLog(tmp_path / "logs.txt", redact, echo=lambda event: seen.append(event.to_line()))
    log.write("run", "tokens-and-more and tokens", key="x-tokens-and-more")
    redact.add(["learned later"])
    log.write("run", "learned later")
    text = (tmp_path / "logs.txt").read_text()
    assert "[REDACTED] and [REDACTED]" in text
    assert seen == text.splitlines()
    for secret in ("token", "more", "learned"):
        assert secret not in text + "".join(seen)


@pytest.mark.parametrize("value", ["true", "null", "1", "123456", '"kind"', "session ends", '{"complete"'])
def test_redaction_keeps_log_lines_readable(value: str, tmp_path: Path) -> None:
    log = RunLog(tmp_path / "logs.txt", Redactor([value]))
    log.write("run", "session ends", complete=True, kind=None, dispatched=123456, costs=[1, None])
    log.close()
    facts = json.loads("{" + (tmp_path / "logs.txt").read_text().partition("{")[2])
    assert facts == {"complete": True, "dispatched": 123456, "costs": [1, None]}


def test_server_log_redaction_keeps_other_bytes(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    path.write_bytes(b"key=hunter22\n\xff\xfe kept\n")
    redact_server_logs(path, Redactor(["hunter22"]))
    assert path.read_bytes() == b"key=[REDACTED]\n\xff\xfe kept\n"
    assert [entry.name for entry in tmp_path.iterdir()] == ["server.log"]


def test_late_log_line_does_not_reach_a_reused_descriptor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A closed descriptor is reused for the next file, so ``close`` waits for a write in progress."""
    log = RunLog(tmp_path / "logs.txt", Redactor())
    write, writing, go_on = os.write, threading.Event(), threading.Event()

    def write_late(descriptor: int, line: bytes) -> int:
        if b" late " in line:
            writing.set()
            assert go_on.wait(300)
        return write(descriptor, line)

    with monkeypatch.context() as patch, ThreadPoolExecutor(2) as threads:
        patch.setattr(os, "write", write_late)
        late = threads.submit(log.write, "run", "late")
        try:
            assert writing.wait(300)
            closing = threads.submit(log.close)
            # Where closing does not wait, it is over at once.
            wait([closing], timeout=0.2)
            other = (tmp_path / "other").open("wb")
        finally:
            go_on.set()
        late.result(300)
        closing.result(300)
    other.close()
    log.write("run", "too late")
    assert (tmp_path / "other").read_bytes() == b""
    assert [line for line in (tmp_path / "logs.txt").read_text().splitlines() if " late {}" in line]


def entry(row: int, run: int = 0, **changes: Any) -> bytes:
    known = {
        "row_index": row,
        "run_index": run,
        "rollout_id": f"{row:016x}{run:016x}",
        "status": "success",
        "duration_ms": 7,
    }
    return json.dumps({**known, **changes}).encode() + b"\n"


def test_index_entries_are_sorted() -> None:
    lines = [
        entry(1, reward=0.5, tokens=3),
        entry(0, reward=None, error_type="x" * 100, status="failed", resumed=True),
    ]
    first, second = read_index(lines, rows=2, n=1)
    assert first == IndexEntry(
        row_index=0,
        run_index=0,
        rollout_id="0" * 32,
        status="failed",
        duration_ms=7,
        error_type="x" * 64,
        resumed=True,
    )
    assert (second.reward, second.tokens, second.trajectory_filename) == (0.5, 3, None)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (entry(7), "line 2 is of row 7, attempt 0, and the run has 2 rows and 1 attempts on each"),
        (entry(1, run_index=1), "line 2 is of row 1, attempt 1"),
        (entry(0, rollout_id="f" * 32), "row 0, attempt 0 is listed twice"),
        (entry(1, rollout_id="0" * 32), "two attempts have the rollout ID"),
        (entry(1, rollout_id="../../../etc"), "`$.rollout_id`"),
        (entry(1, status="perfect"), "`$.status`"),
        (entry(1, reward="1e9"), "`$.reward`"),
        (entry(1, reward=True), "`$.reward`"),
        (entry(1, reward=float("nan")), "line 2 cannot be read"),
        (entry(1, duration_ms=-1), "`$.duration_ms`"),
        (entry(1, status=None), "`$.status`"),
        (entry(1, tokens=2**40), "`$.tokens`"),
        (entry(1, trajectory_filename="../../x.json"), "`$.trajectory_filename`"),
        (entry(1, error_type="a\nb"), "`$.error_type`"),
        (entry(1)[:-9], "line 2 cannot be read"),
        (b"[]\n", "Expected `object`"),
        (b" " * 70_000 + b"\n", "line 2 is longer than 65536 bytes"),
    ],
)
def test_invalid_index_line(line: bytes, said: str) -> None:
    with pytest.raises(OsmosisError) as refused:
        read_index([entry(0), line], rows=2, n=1)
    assert refused.value.message.startswith("index.jsonl is not the index of a complete run: ")
    assert said in refused.value.message


def test_missing_index_entries() -> None:
    with pytest.raises(OsmosisError, match="3 of 4 attempts are missing, the first is row 0, attempt 1"):
        read_index([entry(0)], rows=2, n=2)


@pytest.mark.parametrize(
    "inputs",
    [
        {"n": "four"},
        {"dataset": {}},
        {"dataset": {"selected_source_rows": "0-x"}},
        {"dataset": {"selected_source_rows": "0-99999999999"}},
    ],
)
def test_invalid_manifest_inputs(tmp_path: Path, inputs: dict[str, object]) -> None:
    directory = write_journalled_run(tmp_path / "fox", [[1.0]], inputs=inputs)
    with pytest.raises(OsmosisError, match="does not contain valid rows"):
        read_local_samples(directory)


def test_result_without_row_digest(tmp_path: Path) -> None:
    directory = write_journalled_run(tmp_path / "fox", [[1.0]], digests=[None])
    with pytest.raises(JournalCorruptionError, match="row 0, attempt 0 has no 'row_digest'"):
        read_local_samples(directory)
