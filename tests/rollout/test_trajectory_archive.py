"""The files that a rollout leaves of its conversation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from osmosis_ai.rollout import ExecutionResult, RolloutSample, RolloutStatus
from osmosis_ai.rollout.trajectory import convert_sample_to_trajectory, save_trajectory
from osmosis_ai.rollout.trajectory.archive import encode_trajectory
from tests.rollout.trajectories import CONVERSATION, report


def ended(sample: RolloutSample | None = None, **fields: Any) -> ExecutionResult:
    return ExecutionResult(status=RolloutStatus.SUCCESS, sample=sample, **fields)


class TestArchive:
    async def test_the_file_is_readable_ascii_with_number_arrays_on_one_line(
        self, artifact_root: Path
    ) -> None:
        sample = RolloutSample(messages=[{"role": "assistant", "content": "grüß"}], reward=0.5)

        await save_trajectory(
            rollout_id="r1",
            result=ended(sample),
            report=report({"prompt_token_ids": [1, 2, 3], "logprobs": []}),
        )

        text = (artifact_root / "r1" / "trajectory.json").read_text(encoding="ascii")
        assert '      "message": "gr\\u00fc\\u00df",\n' in text
        assert '"prompt_token_ids": [1, 2, 3]' in text
        assert text.startswith('{\n  "schema_version": "ATIF-v1.7",\n') and text.endswith("}")
        assert "null" not in text and "NaN" not in text
        assert [path.name for path in (artifact_root / "r1").iterdir()] == ["trajectory.json"]

    async def test_the_root_can_be_given(self, tmp_path: Path) -> None:
        sample = RolloutSample(messages=CONVERSATION)

        await save_trajectory(rollout_id="r1", result=ended(sample), artifact_root=tmp_path / "other")

        assert (tmp_path / "other" / "r1" / "trajectory.json").exists()

    @pytest.mark.parametrize(
        "sample", [None, RolloutSample(messages=CONVERSATION, trajectory_messages=None), RolloutSample()]
    )
    async def test_without_messages_there_is_no_file(
        self, artifact_root: Path, sample: RolloutSample | None
    ) -> None:
        await save_trajectory(rollout_id="r1", result=ended(sample))

        assert not artifact_root.exists()

    async def test_diagnostics_are_sorted_and_keep_their_letters(self, artifact_root: Path) -> None:
        await save_trajectory(rollout_id="r1", result=ended(extra_fields={"z": "grüß", "a": 1}))
        await save_trajectory(rollout_id="r2", result=None, diagnostics={"b": Path("x")})

        assert (artifact_root / "r1" / "diagnostics.json").read_text() == '{\n  "a": 1,\n  "z": "grüß"\n}'
        assert "x" in (artifact_root / "r2" / "diagnostics.json").read_text()

    async def test_a_disk_that_refuses_is_logged_and_nothing_is_raised(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        (tmp_path / "file").write_text("")

        await save_trajectory(
            rollout_id="r1",
            result=ended(RolloutSample(messages=CONVERSATION)),
            artifact_root=tmp_path / "file",
        )

        assert "cannot archive rollout r1" in caplog.text


@pytest.mark.parametrize(
    ("said", "metrics"),
    [
        ("42", {}),
        ('a "quoted"\ttab and \x1b', {}),
        ("sechs mal sieben: 42 \N{DEGREE SIGN} \N{PARTY POPPER}", {}),
        ("a list in text: [\n  1]", {}),
        ("half a pair: \ud83c", {}),
        ("a number beyond 64 bits", {"big": 2**70}),
    ],
)
def test_the_file_is_written_as_json_is_with_an_indent_of_two(said: str, metrics: dict[str, Any]) -> None:
    messages = [*CONVERSATION[:2], {"role": "assistant", "content": said}]
    sample = RolloutSample(messages=messages, metrics=metrics)
    text = encode_trajectory(convert_sample_to_trajectory(sample, rollout_id="r1"))
    assert text == json.dumps(json.loads(text), indent=2)
    assert said in [step["message"] for step in json.loads(text)["steps"]]


def test_token_ids_stand_on_one_line() -> None:
    sample = RolloutSample(messages=CONVERSATION[:2] + CONVERSATION[4:])
    told = report({"prompt_token_ids": [1, 2], "completion_token_ids": [-3], "logprobs": [-0.5, 0.0]})
    text = encode_trajectory(convert_sample_to_trajectory(sample, rollout_id="r1", report=told))
    lines = [line.strip().rstrip(",") for line in text.splitlines()]
    assert '"prompt_token_ids": [1, 2]' in lines
    assert '"completion_token_ids": [-3]' in lines
    assert '"logprobs": [-0.5, 0.0]' in lines
