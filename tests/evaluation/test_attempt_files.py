"""Stored conversations and artifacts of attempts."""

from __future__ import annotations

import io
import json
import math
import os
from pathlib import Path
from typing import Any

import pytest

from osmosis_ai.controller.attempt import Attempt, attempt_seeds
from osmosis_ai.controller.model_proxy import LastCall, RolloutUsage
from osmosis_ai.controller.record import TerminalRecord
from osmosis_ai.datasets import DatasetRow
from osmosis_ai.evaluation import attempt_files
from osmosis_ai.evaluation.attempt_files import (
    LARGEST_TRAJECTORY_BYTES,
    AttemptFiles,
    AttemptFilesWriter,
    conversation_line,
    stored_conversations,
)
from osmosis_ai.evaluation.results import AttemptTable
from osmosis_ai.evaluation.run_directory import RunDirectory
from osmosis_ai.evaluation.run_log import RunLog
from osmosis_ai.redaction import Redactor
from osmosis_ai.rollout import GraderCompleteRequest, GraderStatus, RolloutSample
from osmosis_ai.rollout.artifacts import PENDING_TRAJECTORY_FILE
from osmosis_ai.rollout.trajectory import trajectory_identity
from tests.controller.attempts import ended
from tests.deep_directories import deep_directories
from tests.evaluation.builders import record
from tests.evaluation.recorded_runs import append_records

SECRET = "s3cret-value"
ROW = DatasetRow(7, [{"role": "user", "content": "6 x 7?"}], "42", {"level": 1})


class World:
    """A run directory with one row and a few attempts."""

    def __init__(self, root: Path) -> None:
        self.directory = RunDirectory(root / "run")
        self.directory.create()
        self.table = AttemptTable(1, 25)
        self.log = RunLog(self.directory.log, Redactor([SECRET]))

    def writer(self) -> AttemptFilesWriter:
        return AttemptFilesWriter(self.directory, self.table, self.log, Redactor([SECRET]))

    def record(self, run: int = 0) -> TerminalRecord:
        """Journal a result of the rollout ``r<run>``."""
        result = record(0, run, rollout_id=f"r{run}", row_digest="cd" * 16)
        events = self.directory.events
        offset = events.stat().st_size if events.exists() else 0
        append_records(events, [result])
        self.table.set_result(result, offset)
        return result

    def trial(self, run: int = 0) -> Path:
        return self.directory.trial(f"r{run}")

    def server_writes(self, run: int = 0, **changed: object) -> Path:
        path = self.trial(run) / "trajectory.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"session_id": f"r{run}", "steps": ["server"], **changed}))
        return path

    def artifact(self, name: str, text: str = "x", *, run: int = 0) -> Path:
        path = self.trial(run) / "artifacts" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def trajectory(self, run: int = 0) -> Any:
        path = self.directory.trajectories / f"row_0_run_{run}.json"
        return json.loads(path.read_text()) if path.exists() else None

    def artifacts(self, run: int = 0) -> list[str]:
        root = self.directory.artifacts / f"row_0_run_{run}"
        return sorted(path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file())

    def warnings(self) -> list[str]:
        return [line for line in self.directory.log.read_text().splitlines() if " WARNING " in line]


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


MINE = {"session_id": "r0", "steps": ["controller"]}


# What a result's conversation is


async def stored(world: World, result: TerminalRecord | None = None, **changed: Any) -> dict[str, Any] | None:
    """Return the conversation that is stored before the result is journaled."""
    running = ended(Attempt(ROW, 0, 0, attempt_seeds(0, 7, 0)), "r0", **changed)
    writer = world.writer()
    try:
        await writer.append(result or record(rollout_id="r0"), running.trajectory())
        lines = world.directory.conversations.read_bytes().splitlines()
    finally:
        await writer.close()
    found = json.loads(lines[0]) if lines else None
    assert found is None or found["rollout_id"] == "r0"
    return None if found is None else found["trajectory"]


def graded(*said: str, **changed: Any) -> GraderCompleteRequest:
    messages = [{"role": "user", "content": "6 x 7?"}, *({"role": "assistant", "content": s} for s in said)]
    return GraderCompleteRequest(
        status=GraderStatus.SUCCESS, sample=RolloutSample(messages=messages, reward=1.0, **changed)
    )


CALL = LastCall(
    json.dumps({"messages": [{"role": "user", "content": "as called"}]}).encode(),
    json.dumps({"choices": [{"index": 0, "message": {"role": "assistant", "content": "forty"}}]}).encode(),
)


@pytest.mark.parametrize(("call", "said"), [(CALL, ["as called", "forty"]), (None, ["6 x 7?"])])
async def test_failure_is_in_its_conversation(world: World, call: LastCall | None, said: list[str]) -> None:
    cause = {"boundary": "agent", "category": "exception", "error": f"refused {SECRET}"}
    failed = record(rollout_id="r0", status="failed", reward=None, row_digest="ab" * 16, **cause)
    found = await stored(world, failed, last_call=call)
    assert found is not None
    assert [step["message"] for step in found["steps"]] == said
    facts = found["extra"]["osmosis"]
    assert (facts["row_digest"], facts.get("from_model_calls")) == ("ab" * 16, call and True)
    failure = facts["failure"]
    assert (failure["source"], failure["code"]) == ("agent", "exception")
    assert failure["error"].startswith("refused") and SECRET not in failure["error"]


async def test_conversation_of_sample_messages(world: World) -> None:
    found = await stored(world, grader=graded("42"), last_call=CALL)
    assert found is not None
    assert [step["message"] for step in found["steps"]] == ["6 x 7?", "42"]
    facts = found["extra"]["osmosis"]
    assert (facts["label"], facts["request_metadata"], facts["reward"]) == ("42", {"level": 1}, 1.0)
    assert facts["request_extra_fields"] == {"row_index": 0, "run_index": 0, "source_row_index": 7}
    assert "from_model_calls" not in facts


@pytest.mark.parametrize("logprob", [None, -math.inf, "-0.1"])
async def test_malformed_usage_report_keeps_conversation(world: World, logprob: object) -> None:
    calls = {"samples": {"main": {"llm_call_metrics": [{"logprobs": [logprob, "x"]}]}}}
    assert await stored(world, grader=graded("42"), usage=RolloutUsage(calls=1, report=calls))


@pytest.mark.parametrize("said", ["half a pair: \ud83c", "\x00", "\N{PARTY POPPER}"])
async def test_any_text_is_stored(world: World, said: str) -> None:
    assert await stored(world, grader=graded(said))
    world_record = world.record()
    writer = world.writer()
    writer.restore()
    await writer.close()
    assert world.trajectory()["steps"][1]["message"] == said
    files = AttemptFiles(world.directory, world_record.rollout_id, 0, 0)
    assert files.conversation(max_bytes=1 << 20).content


@pytest.mark.parametrize(("levels", "is_kept"), [(0, True), (20_000, False)])
async def test_conversations_are_redacted_before_writing(world: World, levels: int, is_kept: bool) -> None:
    deep: object = f"the key is {SECRET}"
    for _ in range(levels):
        deep = [deep]
    found = await stored(world, grader=graded("42", extra_fields={"deep": deep}))
    assert SECRET not in world.directory.conversations.read_text()
    assert ("the key is [REDACTED]" in str(found)) is is_kept


# The files under readable names


async def written(world: World, trajectory: dict[str, Any] | None, *, run: int = 0) -> AttemptFilesWriter:
    result = world.record(run)
    writer = world.writer()
    writer.add(result, trajectory)
    await writer.write()
    return writer


async def test_server_trajectory_replaces_ours(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.artifact("a.txt")
    writer = await written(world, MINE)
    assert world.trajectory() == MINE and world.artifacts() == ["a.txt"]
    world.server_writes(said=f"the key is {SECRET}", extra={"osmosis": {"reward": 1}, "more": 2})
    monkeypatch.setattr(attempt_files, "SERVER_FILE_WAIT_S", 0.0)
    await writer.write()
    expected = {
        "session_id": "r0",
        "steps": ["server"],
        "said": "the key is [REDACTED]",
        "extra": {"osmosis": {"reward": 1, "row_digest": "cd" * 16}, "more": 2},
    }
    assert world.trajectory() == expected
    line = world.directory.conversations.read_bytes()
    assert json.loads(line) == {"rollout_id": "r0", "trajectory": expected}


@pytest.mark.parametrize("has_directory", [True, False])
async def test_slow_server_file_is_read_at_the_end(
    world: World, has_directory: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempt_files, "SERVER_FILE_WAIT_S", 0.0)
    if has_directory:
        world.artifact("a.txt")
    writer = await written(world, MINE)
    await writer.write()
    world.server_writes()
    await writer.write()
    assert world.trajectory() == MINE
    await writer.write(at_end=True)
    assert world.trajectory()["steps"] == ["server"]


async def test_pending_file_of_killed_server_is_read_at_the_end(world: World) -> None:
    world.server_writes().rename(world.trial() / PENDING_TRAJECTORY_FILE)
    writer = await written(world, MINE)
    assert world.trajectory() == MINE
    await writer.write(at_end=True)
    assert world.trajectory()["steps"] == ["server"]


@pytest.mark.parametrize("has_sample", [True, False])
def test_files_of_killed_session_are_restored(world: World, has_sample: bool) -> None:
    world.record()
    lines = [conversation_line(name, {"session_id": name}) for name in ("r0", "rX", "r0")]
    world.directory.conversations.write_bytes(b"".join(lines) + b'{"rollout_id":"torn')
    world.artifact("notes/a.txt")
    if not has_sample:
        world.directory.conversations.unlink()
        world.server_writes().rename(world.trial() / PENDING_TRAJECTORY_FILE)
    (world.directory.trajectories / ".row_0_run_0.json.tmp").write_text("half")
    (world.directory.artifacts / ".row_0_run_0.tmp").mkdir()

    world.writer().restore()

    assert world.trajectory()["session_id"] == "r0"
    assert world.artifacts() == ["notes/a.txt"]
    assert [path.name for path in world.directory.trajectories.iterdir()] == ["row_0_run_0.json"]
    assert not list(world.directory.artifacts.glob(".*"))


@pytest.mark.parametrize("content", [b'{"steps":\x00}', b"[]", b""])
def test_damaged_conversation_affects_only_its_attempt(world: World, content: bytes) -> None:
    for run in (0, 1):
        world.record(run)
    damaged = b'{"rollout_id":"r0","trajectory":%b}\n{"rollout_id":"\xff","trajectory":1}\n' % content
    world.directory.conversations.write_bytes(damaged + conversation_line("r1", MINE))
    world.writer().restore()
    assert world.trajectory(0) is None and world.trajectory(1) == MINE
    assert "the stored conversation is damaged" in world.warnings()[0]
    assert [name for name, *_ in stored_conversations(world.directory.conversations)] == [
        "r0",
        "\ufffd",
        "r1",
    ]


async def test_files_of_dropped_record_are_removed(world: World) -> None:
    for folder, name in (
        (world.directory.trajectories, "row_0_run_0.json"),
        (world.directory.artifacts, "row_0_run_0"),
    ):
        (folder / name).mkdir()
    writer = world.writer()
    writer.add(world.record(), None)
    await writer.write()
    await writer.close()
    assert not list(world.directory.trajectories.iterdir()) and not list(world.directory.artifacts.iterdir())


def test_conversation_sources(world: World) -> None:
    files = AttemptFiles(world.directory, "r0", 0, 0)
    assert files.conversation(max_bytes=1000).missing == "no conversation of this attempt was stored"
    world.server_writes()
    assert json.loads(files.conversation(max_bytes=1000).content or b"")["steps"] == ["server"]
    world.directory.conversations.write_bytes(conversation_line("r0", MINE))
    assert json.loads(files.conversation(max_bytes=1000).content or b"")["steps"] == ["controller"]
    world.record()
    world.writer().restore()
    found = files.conversation(max_bytes=10)
    assert found.content is None and found.size > 10 and found.open is not None
    with found.open() as file:
        assert json.loads(file.read())["steps"] == ["server"]


async def test_repeated_attempt_replaces_files(world: World) -> None:
    world.artifact("old.txt")
    writer = await written(world, MINE)
    writer.remove(0, 0)
    assert not writer.has_trajectory(0, 0) and world.artifacts() == []
    (world.trial() / "artifacts" / "old.txt").rename(world.trial() / "artifacts" / "new.txt")
    await written(world, {**MINE, "steps": ["new"]})
    assert world.trajectory()["steps"] == ["new"] and world.artifacts() == ["new.txt"]


# What a rollout may leave


@pytest.mark.parametrize(
    ("session", "size", "reason"),
    [
        ("another", None, "it is the trajectory of 'another'"),
        ("r0", LARGEST_TRAJECTORY_BYTES + 1, "more than 256 MiB"),
    ],
    ids=["of another rollout", "too large"],
)
def test_unusable_trajectory_is_left_out(world: World, session: str, size: int | None, reason: str) -> None:
    world.record()
    path = world.server_writes(session_id=session)
    os.truncate(path, size or path.stat().st_size)
    world.writer().restore()
    assert world.trajectory() is None
    assert reason in world.warnings()[0]


@pytest.mark.parametrize("levels", [300, 900])
def test_deeply_nested_server_file_leaks_nothing(world: World, levels: int) -> None:
    deep: object = SECRET
    for _ in range(levels):
        deep = [deep]
    world.record()
    world.server_writes(deep=deep)
    world.writer().restore()
    assert SECRET not in json.dumps(world.trajectory())


def test_links_and_special_files_are_left_out(world: World, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_text("private")
    folder = world.artifact("kept.txt").parent
    (folder / "link").symlink_to(outside)
    (folder / "folder").symlink_to(tmp_path)
    (folder / f"to-{SECRET}").symlink_to(outside)
    os.mkfifo(folder / "pipe")
    world.artifact("a\x1b[31mb.txt")
    world.artifact("manifest.json", "the server's own")
    world.artifact("deep/manifest.json", "an artifact")
    world.record()
    world.writer().restore()
    assert world.artifacts() == ["deep/manifest.json", "kept.txt"]
    (line,) = world.warnings()
    assert "row 0, attempt 0: artifacts left out: " in line
    for named in (
        "link (a symbolic link)",
        "folder (a symbolic link)",
        "to-[REDACTED] (a symbolic link)",
        "pipe (a pipe)",
        "a\\x1b[31mb.txt (its name has characters that are not allowed)",
    ):
        assert named in line, line
    assert "private" not in line and "\x1b" not in line and "kept.txt" not in line and "more" not in line


def test_linked_artifacts_and_trajectory_are_not_copied(world: World, tmp_path: Path) -> None:
    world.record()
    world.trial().mkdir()
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "a.txt").write_text("private")
    (world.trial() / "artifacts").symlink_to(tmp_path / "outside")
    (tmp_path / "t.json").write_text(json.dumps(MINE))
    (world.trial() / "trajectory.json").symlink_to(tmp_path / "t.json")
    world.writer().restore()
    assert world.trajectory() is None and world.artifacts() == []
    assert "artifacts (a symbolic link)" in world.warnings()[0]


def test_linked_trial_directory_is_not_followed(world: World, tmp_path: Path) -> None:
    world.record()
    neighbour = tmp_path / "neighbour"
    (neighbour / "artifacts").mkdir(parents=True)
    (neighbour / "artifacts" / "a.txt").write_text("private")
    (neighbour / "trajectory.json").write_text(json.dumps(MINE))
    world.trial().symlink_to(neighbour)
    world.writer().restore()
    assert world.trajectory() is None and world.artifacts() == []


def test_too_deep_directories_are_left_out(world: World) -> None:
    folder = world.artifact("kept.txt").parent
    world.record()
    with deep_directories(folder):
        world.writer().restore()
        assert "its path is longer than" in world.warnings()[0]
        assert world.artifacts() == ["kept.txt"]
        files = AttemptFiles(world.directory, "r0", 0, 0)
        assert [each.path for each in files.artifacts()] == ["kept.txt"]


def test_growing_artifact_is_copied_up_to_first_size(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    path = world.artifact("grows.txt", "x" * 100)
    reads = 0

    class Growing(io.BufferedReader):
        def read(self, size: int | None = -1, /) -> bytes:
            nonlocal reads
            reads += 1
            assert reads < 10
            with path.open("ab") as writer:
                writer.write(b"y" * (1 << 20))
            return super().read(size)

    opened = attempt_files.open_regular

    def grow(name: Path | str, *, dir_fd: int | None = None) -> Any:
        return Growing(io.FileIO(path)) if name == "grows.txt" else opened(name, dir_fd=dir_fd)

    monkeypatch.setattr(attempt_files, "open_regular", grow)
    world.record()
    world.writer().restore()
    assert (world.directory.artifacts / "row_0_run_0" / "grows.txt").read_text() == "x" * 100


async def test_warnings_about_left_out_files_are_limited(world: World, tmp_path: Path) -> None:
    for run in range(22):
        (world.artifact("kept.txt", run=run).parent / "link").symlink_to(tmp_path)
        world.record(run)
    writer = world.writer()
    writer.restore()
    await writer.write(at_end=True)
    lines = world.warnings()
    assert len(lines) == 21 and "artifacts of 2 more attempts were also left out" in lines[-1]


@pytest.mark.parametrize(
    ("document", "identity"),
    [
        ({"extra": {"osmosis": {"rollout_id": "a"}}, "session_id": "b"}, "a"),
        ({"session_id": "b", "trajectory_id": "c/1"}, "b"),
        ({"trajectory_id": "c/1"}, "c"),
        ({"trajectory_id": "c"}, None),
        ({"extra": None}, None),
        ([], None),
    ],
)
def test_trajectory_identity(document: object, identity: str | None) -> None:
    assert trajectory_identity(document) == identity
