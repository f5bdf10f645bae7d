"""The conversation of an attempt that broke, written where its agent may have put anything."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from osmosis_ai.datasets import DatasetRow
from osmosis_ai.driving.called_conversation import keep_called_conversation
from osmosis_ai.driving.conversation import LastCall
from osmosis_ai.evaluation.trajectory_export import trajectory_problem

REQUEST = {"messages": [{"role": "user", "content": "hello"}]}
ANSWER = {"choices": [{"index": 0, "message": {"role": "assistant", "content": "hi \u00e9"}}]}
CALL = LastCall(json.dumps(REQUEST).encode(), [json.dumps(ANSWER).encode()])


ROW = DatasetRow(7, [{"role": "user", "content": "hello"}], "hi", {"a": 1})


def keep(root: Path, call: LastCall = CALL) -> None:
    told = {"row_index": 3, "run_index": 1}
    keep_called_conversation(root / "r1", call, row=ROW, told=told, report=None)


def test_it_is_a_trajectory_that_an_upload_takes(tmp_path: Path) -> None:
    keep(tmp_path)
    content = (tmp_path / "r1" / "trajectory.json").read_bytes()
    assert trajectory_problem(content, "r1", 3, 1) is None
    assert json.loads(content)["extra"]["osmosis"]["from_model_calls"] is True
    assert [path.name for path in (tmp_path / "r1").iterdir()] == ["trajectory.json"]


@pytest.mark.parametrize("name", ["trajectory.json", ".trajectory.json.pending"])
def test_what_the_attempt_left_itself_stays(tmp_path: Path, name: str) -> None:
    (tmp_path / "r1").mkdir()
    (tmp_path / "r1" / name).write_text("its own")
    keep(tmp_path)
    assert [path.read_text() for path in (tmp_path / "r1").iterdir()] == ["its own"]


def test_no_link_of_the_agents_is_followed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    elsewhere, root = tmp_path / "elsewhere", tmp_path / "trials"
    elsewhere.mkdir()
    root.mkdir()
    (root / "r1").symlink_to(elsewhere)
    keep(root)
    assert list(elsewhere.iterdir()) == []
    assert "cannot keep what rollout r1 said" in caplog.text

    os.unlink(root / "r1")
    (root / "r1").mkdir()
    (root / "r1" / ".trajectory.json.called").symlink_to(elsewhere / "new")
    keep(root)
    assert list(elsewhere.iterdir()) == [] and not (root / "r1" / "trajectory.json").exists()


@pytest.mark.parametrize(
    "request_", [{}, {"messages": None}, {"messages": ["text"]}, {"messages": [{"content": [[]] * 3}]}]
)
def test_messages_of_any_shape_fail_nothing(tmp_path: Path, request_: dict[str, object]) -> None:
    keep(tmp_path, LastCall(json.dumps(request_).encode(), ()))
    keep(tmp_path, LastCall(b'{"messages": ' + b"[" * 5000, ()))
