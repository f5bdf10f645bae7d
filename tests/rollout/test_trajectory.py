"""What a rollout leaves behind: its conversation in the exchange format, and its artifacts."""

from __future__ import annotations

import json
import math
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import ValidationError

from osmosis_ai._version import __version__
from osmosis_ai.rollout import (
    AgentWorkflow,
    AgentWorkflowContext,
    ExecutionRequest,
    ExecutionResult,
    LocalBackend,
    RolloutSample,
    RolloutStatus,
    artifacts,
    trajectory,
)
from osmosis_ai.rollout.artifacts import artifact_root as configured_root
from osmosis_ai.rollout.artifacts import create_artifacts_dir
from osmosis_ai.rollout.trajectory import (
    Step,
    Trajectory,
    TrajectoryReport,
    convert_sample_to_trajectory,
    encode_trajectory,
    report_from_response,
    save_trajectory,
)

CALL = {"id": "c1", "type": "function", "function": {"name": "multiply", "arguments": '{"a": 6, "b": 7}'}}
CONVERSATION: list[dict[str, Any]] = [
    {"role": "system", "content": "You multiply."},
    {"role": "user", "content": "6 times 7?"},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c1", "content": "42"},
    {"role": "assistant", "content": "42"},
]


def report(*calls: dict[str, Any], **fields: Any) -> TrajectoryReport:
    return TrajectoryReport.model_validate({"samples": {"any": {"llm_call_metrics": list(calls), **fields}}})


def convert(
    messages: list[dict[str, Any]], *, sample: dict[str, Any] | None = None, **options: Any
) -> dict[str, Any]:
    """Return the file a conversation becomes."""
    made = RolloutSample(messages=messages, **(sample or {}))
    trajectory = convert_sample_to_trajectory(made, rollout_id="r1", **options)
    return dict(json.loads(encode_trajectory(trajectory)))


def only_step(message: dict[str, Any]) -> dict[str, Any]:
    (step,) = convert([message])["steps"]
    return dict(step)


FIELDS = """
Agent name version model_name tool_definitions extra
ImageSource media_type path
ContentPart type text source
Metrics prompt_tokens completion_tokens cached_tokens cost_usd prompt_token_ids completion_token_ids logprobs extra
FinalMetrics total_prompt_tokens total_completion_tokens total_cached_tokens total_cost_usd total_steps extra
ToolCall tool_call_id function_name arguments extra
SubagentTrajectoryRef trajectory_id session_id trajectory_path extra
ObservationResult source_call_id content subagent_trajectory_ref extra
Observation results
Step step_id timestamp source model_name reasoning_effort message reasoning_content tool_calls observation metrics
    is_copied_context llm_call_count extra
Trajectory schema_version session_id trajectory_id agent steps notes final_metrics continued_trajectory_ref extra
    subagent_trajectories
"""
USER_STEP = {"step_id": 1, "source": "user", "message": ""}
TRAJECTORY: dict[str, Any] = {"agent": {"name": "a", "version": "1"}, "steps": [USER_STEP]}


class TestModels:
    @pytest.mark.parametrize("line", FIELDS.replace("\n    ", " ").strip().splitlines())
    def test_order_of_fields(self, line: str) -> None:
        name, *fields = line.split()
        assert list(getattr(trajectory, name).model_fields) == fields

    @pytest.mark.parametrize(
        "fields",
        [
            {"source": "user", "metrics": {"prompt_tokens": 1}},
            {"source": "user", "model_name": "m"},
            {"source": "system", "tool_calls": []},
            {"source": "system", "reasoning_content": "hm"},
            {"source": "agent", "llm_call_count": 0, "metrics": {}},
            {"source": "agent", "llm_call_count": 0, "reasoning_content": "hm"},
            {"source": "agent", "timestamp": "yesterday"},
            {"source": "agent", "observation": {"results": [{"source_call_id": "nobody"}]}},
            {
                "source": "agent",
                "observation": {"results": [{"subagent_trajectory_ref": [{"session_id": "s"}]}]},
            },
            {"source": "agent", "metrics": {"cost_usd": math.inf}},
            {"source": "agent", "metrics": {"logprobs": [math.nan]}},
            {"source": "agent", "surprise": 1},
            {"source": "tool"},
            {"message": [{"type": "image", "source": {"media_type": "image/bmp", "path": "x"}}]},
            {"message": [{"type": "text"}]},
            {"message": [{"type": "image", "text": "x"}]},
        ],
    )
    def test_inconsistent_steps(self, fields: dict[str, Any]) -> None:
        with pytest.raises(ValidationError):
            Step.model_validate({**USER_STEP, **fields})

    def test_versions_of_the_format(self) -> None:
        child = {**TRAJECTORY, "trajectory_id": "t"}
        for minor in range(8):
            changes = {"schema_version": f"ATIF-v1.{minor}", "subagent_trajectories": [child]}
            Trajectory.model_validate({**TRAJECTORY, **changes})

    @pytest.mark.parametrize(
        "change",
        [
            {"steps": []},
            {"steps": [{**USER_STEP, "step_id": 2}]},
            {"schema_version": "ATIF-v2.0"},
            {"schema_version": "ATIF-v1.8"},
            {"subagent_trajectories": [TRAJECTORY]},
            {"subagent_trajectories": [{**TRAJECTORY, "trajectory_id": "t"}] * 2},
        ],
    )
    def test_inconsistent_trajectories(self, change: dict[str, Any]) -> None:
        with pytest.raises(ValidationError):
            Trajectory.model_validate({**TRAJECTORY, **change})


TIME = "2026-01-02T03:04:05+00:00"
TEXTS = [{"type": "text", "text": "one"}, {"type": "output_text", "text": "two"}]
IMAGE = {"type": "image_url", "image_url": "x"}
ITEM = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"}


class TestConversion:
    def test_a_conversation_with_a_tool_call(self) -> None:
        assert convert(CONVERSATION, sample={"label": "42", "reward": 1.0}) == {
            "schema_version": "ATIF-v1.7",
            "session_id": "r1",
            "trajectory_id": "r1",
            "agent": {"name": "osmosis-rollout-sdk", "version": __version__},
            "steps": [
                {"step_id": 1, "source": "system", "message": "You multiply."},
                {"step_id": 2, "source": "user", "message": "6 times 7?"},
                {
                    "step_id": 3,
                    "source": "agent",
                    "message": "",
                    "tool_calls": [
                        {"tool_call_id": "c1", "function_name": "multiply", "arguments": {"a": 6, "b": 7}}
                    ],
                    "observation": {"results": [{"source_call_id": "c1", "content": "42"}]},
                },
                {"step_id": 4, "source": "agent", "message": "42"},
            ],
            "final_metrics": {"total_steps": 4},
            "extra": {"osmosis": {"rollout_id": "r1", "label": "42", "reward": 1.0}},
        }

    @pytest.mark.parametrize(
        ("message", "expected"),
        [
            ({"role": "developer"}, {"source": "system", "extra": None}),
            ({"role": "critic"}, {"source": "user", "extra": {"original_role": "critic"}}),
            ({"role": None, "content": "x"}, {"source": "user", "extra": None, "message": "x"}),
            ({"role": "tool"}, {"source": "system", "extra": {"original_role": "tool"}}),
            ({"role": "user", "content": "plain"}, {"message": "plain"}),
            ({"role": "user", "content": None}, {"message": ""}),
            ({"role": "user", "content": TEXTS}, {"message": "one\ntwo"}),
            ({"role": "user", "content": []}, {"message": "[]"}),
            ({"role": "user", "content": [IMAGE]}, {"message": '[{"type":"image_url","image_url":"x"}]'}),
            ({"role": "user", "content": {"a": 1}}, {"message": '{"a":1}'}),
            ({"role": "user", "content": "half \ud83d"}, {"message": "half \ud83d"}),
            ({"role": "user", "content": ["\ud83d"]}, {"message": r'["\ud83d"]'}),
            (ITEM, {"source": "user", "message": json.dumps(ITEM, separators=(",", ":"))}),
            ({"role": "assistant", "reasoning_content": "hm"}, {"reasoning_content": "hm"}),
            ({"role": "assistant", "reasoning": {"steps": [1]}}, {"reasoning_content": '{"steps":[1]}'}),
            ({"created_at": "2026-01-02T03:04:05Z"}, {"timestamp": TIME}),
            ({"created_at": "2026-01-02T05:04:05+02:00"}, {"timestamp": TIME}),
            ({"created_at": "2026-01-02T03:04:05"}, {"timestamp": TIME}),
            ({"created_at": datetime(2026, 1, 2, 3, 4, 5)}, {"timestamp": TIME}),
            ({"created_at": "soon", "completed_at": TIME}, {"timestamp": TIME}),
            ({"timestamp": 0}, {"timestamp": "1970-01-01T00:00:00+00:00"}),
            ({"extra": {"timestamp": "2026-01-02"}}, {"timestamp": "2026-01-02T00:00:00+00:00"}),
            ({"timestamp": 1e300}, {"timestamp": None}),
        ],
    )
    def test_step_of_a_message(self, message: dict[str, Any], expected: dict[str, Any]) -> None:
        step = only_step(message)
        assert {name: step.get(name) for name in expected} == expected

    def test_tool_results_belong_to_the_latest_agent_step(self) -> None:
        known = {"role": "tool", "tool_call_id": "c1", "content": "42"}
        unknown = {"role": "tool", "tool_call_id": "c9", "name": "f", "content": "?"}
        agent, user = convert([CONVERSATION[2], {"role": "user", "content": "wait"}, known, unknown])["steps"]

        assert agent["observation"]["results"] == [
            {"source_call_id": "c1", "content": "42"},
            {"content": "?", "extra": {"tool_call_id": "c9", "tool_name": "f"}},
        ]
        assert user["message"] == "wait"

    @pytest.mark.parametrize(
        ("arguments", "parsed"),
        [
            ('{"a": 1}', {"a": 1}),
            ({"a": 1}, {"a": 1}),
            ("{broken", {"_raw": "{broken"}),
            ("[1]", {"_raw": "[1]"}),
            ('{"a": NaN}', {"_raw": '{"a": NaN}'}),
            ("", {}),
            (None, {}),
        ],
    )
    def test_tool_arguments(self, arguments: Any, parsed: Any) -> None:
        message = {
            "role": "assistant",
            "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": arguments}}],
        }

        assert only_step(message)["tool_calls"][0]["arguments"] == parsed

    @pytest.mark.parametrize(
        ("fields", "expected"),
        [
            (
                {"usage": {"prompt_tokens": 5, "completion_tokens": 0}},
                {"prompt_tokens": 5, "completion_tokens": 0},
            ),
            (
                {"usage": {"input_tokens": 5, "output_tokens": 2}},
                {"prompt_tokens": 5, "completion_tokens": 2},
            ),
            ({"extra": {"response": {"usage": {"prompt_tokens": 3}}}}, {"prompt_tokens": 3}),
            (
                {"usage": {"prompt_tokens": 5, "prompt_tokens_details": {"cached_tokens": 4}}},
                {"prompt_tokens": 5, "cached_tokens": 4},
            ),
            ({"usage": {}}, None),
            ({"usage": "many"}, None),
        ],
    )
    def test_usage_of_a_message(self, fields: dict[str, Any], expected: Any) -> None:
        converted = convert([{"role": "assistant", "content": "x", **fields}])

        assert converted["steps"][0].get("metrics") == expected
        assert converted["steps"][0].get("llm_call_count") == (None if expected is None else 1)
        total = None if expected is None else expected["prompt_tokens"]
        assert converted["final_metrics"].get("total_prompt_tokens") == total

    def test_extra_fields_of_request_and_sample(self) -> None:
        converted = convert(
            CONVERSATION,
            sample={"metrics": {"turns": 2, "nan": math.nan}, "extra_fields": {"note": "x"}},
            request_label="42",
            request_metadata={"id": 7},
            request_extra_fields={"row_index": 0},
        )

        assert converted["extra"]["osmosis"] == {
            "rollout_id": "r1",
            "label": "42",
            "sample_metrics": {"turns": 2},
            "sample_extra_fields": {"note": "x"},
            "request_metadata": {"id": 7},
            "request_extra_fields": {"row_index": 0},
        }


class TestReport:
    def test_report_overrides_messages(self) -> None:
        messages = [
            *CONVERSATION[:4],
            {**CONVERSATION[4], "usage": {"prompt_tokens": 1, "completion_tokens": 2}},
        ]

        call = {"prompt_tokens": 10, "completion_token_ids": [1, 2], "logprobs": [-0.5, -1.0]}
        final = {"total_cached_tokens": 7, "total_cost_usd": 0.75}

        converted = convert(
            messages,
            report=report(
                {**call, "model_name": "m1"},
                {"prompt_tokens": 20, "cost_usd": 0.5, "unknown": "ignored"},
                model_name="policy",
                final_metrics={**final, "total_steps": 9, "other": 1},
            ),
        )

        first, second = [step for step in converted["steps"] if step["source"] == "agent"]
        assert first["metrics"] == call
        assert first["model_name"] == "m1"
        assert second["metrics"] == {"prompt_tokens": 20, "completion_tokens": 2, "cost_usd": 0.5}
        assert converted["agent"]["model_name"] == "policy"
        assert converted["final_metrics"] == {
            **final,
            "total_prompt_tokens": 30,
            "total_completion_tokens": 2,
            "total_steps": 4,
        }

    def test_times_of_a_step(self) -> None:
        report_ = {"latency_ms": 12.5, "attempts": 2, "started_at": "2026-03-01T12:00:00.250000+00:00"}
        odd = {"latency_ms": True, "started_at": "yesterday"}
        converted = convert(CONVERSATION, report=report({"extra": report_}, {"extra": odd}))
        first, second = [step for step in converted["steps"] if step["source"] == "agent"]
        assert (first["timestamp"], first["extra"]) == (report_["started_at"], {"duration_ms": 12.5})
        assert first["metrics"]["extra"] == report_
        assert "timestamp" not in second and "extra" not in second

    @pytest.mark.parametrize("carried", [{}, {"samples": {}}, {"future": 1}])
    def test_report_of_a_response(self, carried: Any) -> None:
        body = {"trajectory": carried}
        assert report_from_response(body) == TrajectoryReport()
        assert report_from_response(httpx.Response(200, json=body)) == TrajectoryReport()

    @pytest.mark.parametrize(
        "response",
        [
            httpx.Response(200, content=b'{"trajectory": '),
            {"trajectory": []},
            {"trajectory": {"samples": {"a": {"llm_call_metrics": 3}}}},
        ],
    )
    def test_malformed_reports(self, response: Any, caplog: pytest.LogCaptureFixture) -> None:
        assert report_from_response(response) is None
        assert "malformed trajectory report" in caplog.text


def ended(sample: RolloutSample | None = None, **fields: Any) -> ExecutionResult:
    return ExecutionResult(status=RolloutStatus.SUCCESS, sample=sample, **fields)


class TestArchive:
    async def test_format_of_the_file(self, artifact_root: Path) -> None:
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

    async def test_root_of_the_archive_and_failing_disk(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        result = ended(RolloutSample(messages=CONVERSATION))
        (tmp_path / "file").write_text("")

        await save_trajectory(rollout_id="r1", result=result, artifact_root=tmp_path / "other")
        await save_trajectory(rollout_id="r2", result=result, artifact_root=tmp_path / "file")

        assert (tmp_path / "other" / "r1" / "trajectory.json").exists()
        assert "cannot archive rollout r2" in caplog.text and "r1" not in caplog.text


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
def test_the_file_is_indented_json(said: str, metrics: dict[str, Any]) -> None:
    messages = [*CONVERSATION[:2], {"role": "assistant", "content": said}]
    sample = RolloutSample(messages=messages, metrics=metrics)
    text = encode_trajectory(convert_sample_to_trajectory(sample, rollout_id="r1"))
    assert text == json.dumps(json.loads(text), indent=2)
    assert said in [step["message"] for step in json.loads(text)["steps"]]


class TestDirectory:
    def test_default_artifact_root(self, artifact_root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        assert configured_root() == artifact_root
        monkeypatch.delenv("_OSMOSIS_ROLLOUT_ARTIFACT_ROOT")
        assert configured_root() == Path.home() / ".osmosis"

    def test_marker_of_a_new_directory(self, tmp_path: Path) -> None:
        made = create_artifacts_dir(tmp_path / "root" / "r1")

        assert made == tmp_path / "root" / "r1" / "artifacts"
        marker = made.parent / ".osmosis-health-check"
        assert sorted(made.parent.iterdir()) == [marker, made] and list(made.iterdir()) == []
        marker.write_text("never written again")
        made.rmdir()
        assert create_artifacts_dir(made.parent) == made
        assert marker.read_text() == "never written again"

    async def test_an_unwritable_root(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        pauses: list[float] = []
        monkeypatch.setattr(artifacts.time, "sleep", pauses.append)

        class Looks(AgentWorkflow):
            async def run(self, ctx: AgentWorkflowContext) -> Any:
                return [{"role": "assistant", "content": f"{ctx.artifacts_dir} {ctx.artifacts_dir}"}]

        blocked = tmp_path / "file"
        blocked.write_text("")
        monkeypatch.setenv("_OSMOSIS_ROLLOUT_ARTIFACT_ROOT", str(blocked))

        result = await LocalBackend(workflow=Looks).run_workflow(ExecutionRequest(id="r1", prompt=[]))

        assert result.sample is not None and result.sample.messages[0]["content"] == "None None"
        assert pauses == [0.05, 0.1]


def test_tool_calls_of_another_shape() -> None:
    custom = {"id": "c2", "type": "custom", "custom": {"name": "shell", "input": "ls"}}
    plain = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    step = only_step({"role": "assistant", "content": None, "tool_calls": [plain, custom, "?"]})

    assert [call["tool_call_id"] for call in step["tool_calls"]] == ["c1"]
    assert step["extra"] == {"tool_calls": [custom, "?"]}


def test_reports_of_several_samples() -> None:
    report_ = TrajectoryReport.model_validate(
        {"model_name": "m", "samples": {"a": {}, "b": {"model_name": "n"}}}
    )

    converted = convert(CONVERSATION, report=report_)

    kept = converted["extra"]["osmosis"]["unmatched_sample_reports"]
    assert kept == {"a": {"llm_call_metrics": []}, "b": {"model_name": "n", "llm_call_metrics": []}}
    assert converted["agent"]["model_name"] == "m"
