from __future__ import annotations

import json
import os
import re
import threading
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

import pytest

from osmosis_ai.evaluation.run_log import RunLog, redact_file
from osmosis_ai.redaction import Redactor


def test_a_line_has_time_level_step_message_and_details(tmp_path: Path) -> None:
    log = RunLog(tmp_path / "logs.txt", Redactor())
    log.write("server", "two\nlines", level="WARNING", port=80, nothing=None)
    log.close()
    line = (tmp_path / "logs.txt").read_text()
    match = re.fullmatch(r"(\S+Z) WARNING \[server\] two lines (\{.*\})\n", line)
    assert match
    assert json.loads(match[2]) == {"port": 80}
    assert (tmp_path / "logs.txt").stat().st_mode & 0o077 == 0


def test_secrets_are_hidden_the_longest_first_wherever_they_are(tmp_path: Path) -> None:
    seen: list[str] = []
    redact = Redactor(["tokens", "tokens-and-more"])
    log = RunLog(tmp_path / "logs.txt", redact, echo=lambda event, hide: seen.append(event.to_line(hide)))
    log.write("run", "tokens-and-more and tokens", key="x-tokens-and-more")
    redact.add(["learned later"])
    log.write("run", "learned later")
    text = (tmp_path / "logs.txt").read_text()
    assert "[REDACTED] and [REDACTED]" in text
    assert seen == text.splitlines()
    for secret in ("token", "more", "learned"):
        assert secret not in text + "".join(seen)


@pytest.mark.parametrize("value", ["true", "null", "1", "123456", '"kind"', "session ends", '{"complete"'])
def test_no_value_of_a_secret_makes_a_line_unreadable(value: str, tmp_path: Path) -> None:
    log = RunLog(tmp_path / "logs.txt", Redactor([value]))
    log.write("run", "session ends", complete=True, kind=None, dispatched=123456, costs=[1, None])
    log.close()
    facts = json.loads("{" + (tmp_path / "logs.txt").read_text().partition("{")[2])
    assert facts == {"complete": True, "dispatched": 123456, "costs": [1, None]}


def test_a_secret_of_several_lines_is_hidden_before_they_become_one(tmp_path: Path) -> None:
    log = RunLog(tmp_path / "logs.txt", Redactor(["begin\nmiddle\nend"]))
    log.write("run", "key=begin\nmiddle\nend, said the agent", where=tmp_path / "begin\nmiddle\nend")
    log.close()
    assert "middle" not in (tmp_path / "logs.txt").read_text()


def test_the_parts_of_a_secret_of_several_lines_are_hidden_too() -> None:
    redact = Redactor(["-----BEGIN\nsecretpart\n-----END"])
    assert redact.text("x secretpart y") == "x [REDACTED] y"


def test_nobody_sees_secrets_in_a_redactors_own_representation() -> None:
    assert "hunter22" not in repr(Redactor(["hunter22"]))


def test_a_log_of_another_process_is_cleaned_without_touching_other_bytes(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    path.write_bytes(b"key=hunter22\n\xff\xfe kept\n")
    redact_file(path, Redactor(["hunter22"]))
    assert path.read_bytes() == b"key=[REDACTED]\n\xff\xfe kept\n"
    redact_file(tmp_path / "missing.log", Redactor(["hunter22"]))
    assert [entry.name for entry in tmp_path.iterdir()] == ["server.log"]


def test_a_line_that_is_late_never_goes_into_a_file_that_was_opened_since(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A descriptor that was closed is the next file's: whoever is about to write to it is waited for."""
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
