"""What a rollout leaves behind: its conversation in the exchange format, and its artifacts."""

from __future__ import annotations

import json
import math
import os
from datetime import datetime
from pathlib import Path
from typing import Any

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
)
from osmosis_ai.rollout.artifacts import artifact_root as configured_root
from osmosis_ai.rollout.artifacts import artifact_tree_state, copy_artifact_tree, create_artifacts_dir
from osmosis_ai.rollout.trajectory import (
    TrajectoryReport,
    convert_sample_to_trajectory,
    encode_trajectory,
    report_from_response,
    save_trajectory,
)
from osmosis_ai.rollout.trajectory.atif import (
    Agent,
    ContentPart,
    FinalMetrics,
    ImageSource,
    Metrics,
    Observation,
    ObservationResult,
    Step,
    SubagentTrajectoryRef,
    ToolCall,
    Trajectory,
)
from tests.rollout.trajectories import CONVERSATION, report


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


class TestModels:
    @pytest.mark.parametrize(
        ("model", "fields"),
        [
            (Agent, "name version model_name tool_definitions extra"),
            (ImageSource, "media_type path"),
            (ContentPart, "type text source"),
            (
                Metrics,
                "prompt_tokens completion_tokens cached_tokens cost_usd prompt_token_ids completion_token_ids "
                "logprobs extra",
            ),
            (
                FinalMetrics,
                "total_prompt_tokens total_completion_tokens total_cached_tokens total_cost_usd total_steps extra",
            ),
            (ToolCall, "tool_call_id function_name arguments extra"),
            (SubagentTrajectoryRef, "trajectory_id session_id trajectory_path extra"),
            (ObservationResult, "source_call_id content subagent_trajectory_ref extra"),
            (Observation, "results"),
            (
                Step,
                "step_id timestamp source model_name reasoning_effort message reasoning_content tool_calls "
                "observation metrics is_copied_context llm_call_count extra",
            ),
            (
                Trajectory,
                "schema_version session_id trajectory_id agent steps notes final_metrics continued_trajectory_ref "
                "extra subagent_trajectories",
            ),
        ],
    )
    def test_fields_come_in_the_formats_order(self, model: Any, fields: str) -> None:
        assert list(model.model_fields) == fields.split()

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
            {"source": "agent", "metrics": {"cost_usd": math.inf}},
            {"source": "agent", "metrics": {"logprobs": [math.nan]}},
            {"source": "agent", "surprise": 1},
            {"source": "tool"},
            {
                "source": "user",
                "message": [{"type": "image", "source": {"media_type": "image/bmp", "path": "x"}}],
            },
        ],
    )
    def test_an_inconsistent_step_is_refused(self, fields: dict[str, Any]) -> None:
        with pytest.raises(ValidationError):
            Step.model_validate({"step_id": 1, "message": "", **fields})

    def test_a_subagent_reference_points_somewhere(self) -> None:
        with pytest.raises(ValidationError):
            SubagentTrajectoryRef(session_id="s")

    @pytest.mark.parametrize(
        "change",
        [
            {"steps": []},
            {"steps": [{"step_id": 2, "source": "user", "message": ""}]},
            {"schema_version": "ATIF-v2.0"},
            {"subagent_trajectories": [{"agent": {"name": "a", "version": "1"}}]},
        ],
    )
    def test_an_inconsistent_trajectory_is_refused(self, change: dict[str, Any]) -> None:
        step = {"step_id": 1, "source": "user", "message": ""}
        whole = {"agent": {"name": "a", "version": "1"}, "steps": [step]}
        child = {**whole, "trajectory_id": "t"}
        Trajectory.model_validate({**whole, "schema_version": "ATIF-v1.0", "subagent_trajectories": [child]})
        if "subagent_trajectories" in change:
            change = {"subagent_trajectories": [child, child]}

        with pytest.raises(ValidationError):
            Trajectory.model_validate({**whole, **change})


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
        ("role", "source", "extra"),
        [
            ("developer", "system", None),
            ("critic", "user", {"original_role": "critic"}),
            (None, "user", None),
            ("tool", "system", {"original_role": "tool"}),
        ],
    )
    def test_roles_find_their_place(self, role: Any, source: str, extra: Any) -> None:
        step = only_step({"role": role, "content": "x", "tool_call_id": "c9"})

        assert step["source"] == source
        assert step.get("extra") == extra

    @pytest.mark.parametrize(
        ("content", "text"),
        [
            ("plain", "plain"),
            (None, ""),
            ([{"type": "text", "text": "one"}, {"type": "text", "text": "two"}], "one\ntwo"),
            ([], "[]"),
            ([{"type": "image_url", "image_url": "x"}], '[{"type":"image_url","image_url":"x"}]'),
            ({"a": 1}, '{"a":1}'),
        ],
    )
    def test_content_becomes_text(self, content: Any, text: str) -> None:
        assert only_step({"role": "user", "content": content})["message"] == text

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
    def test_tool_arguments_are_an_object_whatever_the_model_wrote(self, arguments: Any, parsed: Any) -> None:
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
    def test_usage_written_into_a_message_becomes_metrics(
        self, fields: dict[str, Any], expected: Any
    ) -> None:
        converted = convert([{"role": "assistant", "content": "x", **fields}])

        assert converted["steps"][0].get("metrics") == expected
        assert converted["steps"][0].get("llm_call_count") == (None if expected is None else 1)
        total = None if expected is None else expected["prompt_tokens"]
        assert converted["final_metrics"].get("total_prompt_tokens") == total

    @pytest.mark.parametrize(
        ("fields", "time"),
        [
            ({"created_at": "2026-01-02T03:04:05Z"}, "2026-01-02T03:04:05+00:00"),
            ({"created_at": "2026-01-02T05:04:05+02:00"}, "2026-01-02T03:04:05+00:00"),
            ({"created_at": "2026-01-02T03:04:05"}, "2026-01-02T03:04:05+00:00"),
            ({"created_at": datetime(2026, 1, 2, 3, 4, 5)}, "2026-01-02T03:04:05+00:00"),
            ({"timestamp": 0}, "1970-01-01T00:00:00+00:00"),
            (
                {"created_at": "soon", "completed_at": "2026-01-02T03:04:05+00:00"},
                "2026-01-02T03:04:05+00:00",
            ),
            ({"extra": {"timestamp": "2026-01-02"}}, "2026-01-02T00:00:00+00:00"),
            ({"timestamp": 1e300}, None),
        ],
    )
    def test_the_time_is_found_where_frameworks_put_it(self, fields: dict[str, Any], time: Any) -> None:
        assert only_step({"role": "user", "content": "x", **fields}).get("timestamp") == time

    @pytest.mark.parametrize(("reasoning", "text"), [("hm", "hm"), ({"steps": [1]}, '{"steps":[1]}')])
    def test_reasoning_is_kept(self, reasoning: Any, text: str) -> None:
        assert (
            only_step({"role": "assistant", "content": "x", "reasoning_content": reasoning})[
                "reasoning_content"
            ]
            == text
        )

    def test_what_came_with_the_request_and_the_sample_is_kept(self) -> None:
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

    def test_lone_surrogates_survive(self) -> None:
        assert only_step({"role": "user", "content": "half \ud83d"})["message"] == "half \ud83d"
        assert json.loads(only_step({"role": "user", "content": ["\ud83d"]})["message"]) == ["\ud83d"]

    def test_an_item_of_another_api_is_kept_whole(self) -> None:
        item = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"}
        assert json.loads(only_step(item)["message"]) == item


class TestReport:
    def test_calls_map_onto_agent_steps_over_what_messages_say(self) -> None:
        messages = [
            *CONVERSATION[:4],
            {**CONVERSATION[4], "usage": {"prompt_tokens": 1, "completion_tokens": 2}},
        ]

        converted = convert(
            messages,
            report=report(
                {
                    "prompt_tokens": 10,
                    "completion_token_ids": [1, 2],
                    "logprobs": [-0.5, -1.0],
                    "model_name": "m1",
                },
                {"prompt_tokens": 20, "cost_usd": 0.5, "unknown": "ignored"},
                model_name="policy",
            ),
        )

        first, second = [step for step in converted["steps"] if step["source"] == "agent"]
        assert first["metrics"] == {
            "prompt_tokens": 10,
            "completion_token_ids": [1, 2],
            "logprobs": [-0.5, -1.0],
        }
        assert first["model_name"] == "m1"
        assert second["metrics"] == {"prompt_tokens": 20, "completion_tokens": 2, "cost_usd": 0.5}
        assert converted["agent"]["model_name"] == "policy"
        assert converted["final_metrics"] == {
            "total_prompt_tokens": 30,
            "total_completion_tokens": 2,
            "total_cost_usd": 0.5,
            "total_steps": 4,
        }

    def test_a_step_says_when_its_call_began_and_how_long_it_took(self) -> None:
        told = {"latency_ms": 12.5, "attempts": 2, "started_at": "2026-03-01T12:00:00.250000+00:00"}
        odd = {"latency_ms": True, "started_at": "yesterday"}
        converted = convert(CONVERSATION, report=report({"extra": told}, {"extra": odd}))
        first, second = [step for step in converted["steps"] if step["source"] == "agent"]
        assert (first["timestamp"], first["extra"]) == (told["started_at"], {"duration_ms": 12.5})
        assert first["metrics"]["extra"] == told
        assert "timestamp" not in second and "extra" not in second

    @pytest.mark.parametrize(
        "body",
        [b'{"trajectory": {"samples": {}}}', '{"trajectory": {}}', {"trajectory": {"future": 1}}],
    )
    def test_a_report_is_read_from_any_form_of_an_acknowledgement(self, body: Any) -> None:
        assert report_from_response(body) == TrajectoryReport()

    @pytest.mark.parametrize(
        "body",
        [b'{"trajectory": ', {"trajectory": []}, {"trajectory": {"samples": {"a": {"llm_call_metrics": 3}}}}],
    )
    def test_a_malformed_one_is_ignored_with_a_warning(
        self, body: Any, caplog: pytest.LogCaptureFixture
    ) -> None:
        assert report_from_response(body) is None
        assert "malformed trajectory report" in caplog.text


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


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Retries do not wait; what they would have waited is returned."""
    pauses: list[float] = []

    monkeypatch.setattr(artifacts.time, "sleep", pauses.append)
    return pauses


class TestDirectory:
    def test_the_root_is_the_environments_else_the_home_directorys(
        self, artifact_root: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert configured_root() == artifact_root
        monkeypatch.delenv("_OSMOSIS_ROLLOUT_ARTIFACT_ROOT")
        assert configured_root() == Path.home() / ".osmosis"

    def test_the_first_creation_leaves_a_marker_outside_of_the_artifacts(self, tmp_path: Path) -> None:
        made = create_artifacts_dir(tmp_path / "root" / "r1")

        assert made == tmp_path / "root" / "r1" / "artifacts"
        assert sorted(path.name for path in made.parent.iterdir()) == [".osmosis-health-check", "artifacts"]
        assert list(made.iterdir()) == []

    def test_the_marker_is_never_written_again(self, tmp_path: Path) -> None:
        create_artifacts_dir(tmp_path / "r1")
        marker = tmp_path / "r1" / ".osmosis-health-check"
        marker.write_text("seen")
        (tmp_path / "r1" / "artifacts").rmdir()

        create_artifacts_dir(tmp_path / "r1")

        assert marker.read_text() == "seen"

    def test_a_root_that_cannot_be_written_is_tried_three_times_and_then_done_without(
        self, tmp_path: Path, quick: list[float]
    ) -> None:
        blocked = tmp_path / "file"
        blocked.write_text("")

        assert create_artifacts_dir(blocked / "r1") is None
        assert quick == [0.05, 0.1]

    async def test_a_rollout_goes_on_without_its_directory(
        self, tmp_path: Path, quick: list[float], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        class Looks(AgentWorkflow):
            async def run(self, ctx: AgentWorkflowContext) -> Any:
                return [{"role": "assistant", "content": str(ctx.artifacts_dir)}]

        blocked = tmp_path / "file"
        blocked.write_text("")
        monkeypatch.setenv("_OSMOSIS_ROLLOUT_ARTIFACT_ROOT", str(blocked))

        result = await LocalBackend(workflow=Looks).run_workflow(ExecutionRequest(id="r1", prompt=[]))

        assert result.sample is not None and result.sample.messages[0]["content"] == "None"


class Tree:
    """A source an agent has filled, and a trusted root to copy into."""

    def __init__(self, base: Path) -> None:
        self.source = base / "source"
        self.root = base / "root"
        self.destination = self.root / "a" / "b"
        self.secret = base / "secret"
        for directory in (self.source, self.root, self.secret):
            directory.mkdir()
        (self.secret / "key").write_text("s3cret")

    def write(self, name: str, text: str) -> None:
        path = self.source / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def copy(self, **options: Any) -> int:
        return copy_artifact_tree(self.source, self.destination, destination_root=self.root, **options)

    def copied(self) -> dict[str, str]:
        return {
            str(path.relative_to(self.destination)): path.read_text()
            for path in sorted(self.destination.rglob("*"))
            if path.is_file()
        }


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


class TestCopy:
    def test_contents_are_merged_into_what_is_there(self, tree: Tree) -> None:
        tree.write("x.txt", "x")
        tree.write("deep/y.txt", "y")
        tree.destination.mkdir(parents=True)
        (tree.destination / "old.txt").write_text("old")
        (tree.destination / "x.txt").write_text("before")

        assert tree.copy() == 2
        assert tree.copied() == {"deep/y.txt": "y", "old.txt": "old", "x.txt": "x"}

    def test_symbolic_links_and_special_files_stay_behind(self, tree: Tree) -> None:
        tree.write("x.txt", "x")
        (tree.source / "file-link").symlink_to(tree.secret / "key")
        (tree.source / "directory-link").symlink_to(tree.secret)
        os.mkfifo(tree.source / "fifo")

        assert tree.copy() == 1
        assert tree.copied() == {"x.txt": "x"}
        assert set(artifact_tree_state(tree.source)) == {"x.txt"}

    def test_a_source_that_is_a_symbolic_link_is_refused(self, tree: Tree) -> None:
        tree.source.rmdir()
        tree.source.symlink_to(tree.secret)

        with pytest.raises(OSError):
            tree.copy()

    def test_a_symbolic_link_on_the_way_to_the_destination_is_refused(self, tree: Tree) -> None:
        tree.write("x.txt", "x")
        (tree.root / "a").symlink_to(tree.secret)

        with pytest.raises(OSError, match="symlink in artifact destination path"):
            tree.copy()
        assert [path.name for path in tree.secret.iterdir()] == ["key"]

    def test_a_symbolic_link_inside_the_destination_is_replaced_not_followed(self, tree: Tree) -> None:
        tree.write("key", "mine")
        tree.write("deep/key", "mine")
        tree.destination.mkdir(parents=True)
        (tree.destination / "key").symlink_to(tree.secret / "key")
        (tree.destination / "deep").symlink_to(tree.secret)

        tree.copy()

        assert tree.copied() == {"deep/key": "mine", "key": "mine"}
        assert (tree.secret / "key").read_text() == "s3cret"

    def test_files_unchanged_since_the_baseline_are_not_copied(self, tree: Tree) -> None:
        tree.write("old.txt", "old")
        tree.write("deep/changed.txt", "before")
        baseline = artifact_tree_state(tree.source)
        tree.write("deep/changed.txt", "after, and longer")
        tree.write("new.txt", "new")

        assert tree.copy(baseline=baseline) == 2
        assert tree.copied() == {"deep/changed.txt": "after, and longer", "new.txt": "new"}

    @pytest.mark.parametrize("place", ["", "..", "../elsewhere"])
    def test_a_destination_outside_of_the_root_is_refused(self, tree: Tree, place: str) -> None:
        with pytest.raises(ValueError, match="is not below"):
            copy_artifact_tree(tree.source, tree.root / place, destination_root=tree.root)


def test_an_agents_call_of_another_shape_is_kept() -> None:
    custom = {"id": "c2", "type": "custom", "custom": {"name": "shell", "input": "ls"}}
    plain = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    step = only_step({"role": "assistant", "content": None, "tool_calls": [plain, custom, "?"]})

    assert [call["tool_call_id"] for call in step["tool_calls"]] == ["c1"]
    assert step["extra"] == {"tool_calls": [custom, "?"]}


def test_several_samples_are_kept_apart() -> None:
    told = TrajectoryReport.model_validate(
        {"model_name": "m", "samples": {"a": {}, "b": {"model_name": "n"}}}
    )

    converted = convert(CONVERSATION, report=told)

    kept = converted["extra"]["osmosis"]["unmatched_sample_reports"]
    assert kept == {
        "a": {"llm_call_metrics": []},
        "b": {"model_name": "n", "llm_call_metrics": []},
    }
    assert converted["agent"]["model_name"] == "m"


def test_the_destination_can_be_replaced(tree: Tree) -> None:
    tree.write("x.txt", "x")
    (tree.destination / "deep").mkdir(parents=True)
    (tree.destination / "deep" / "old.txt").write_text("old")

    tree.copy(replace_destination=True)

    assert tree.copied() == {"x.txt": "x"}


def test_a_file_takes_the_place_of_a_directory_and_the_reverse(tree: Tree) -> None:
    tree.write("a", "now a file")
    tree.write("b/c", "now a directory")
    (tree.destination / "a" / "deep").mkdir(parents=True)
    (tree.destination / "b").write_text("was a file")

    tree.copy()

    assert tree.copied() == {"a": "now a file", "b/c": "now a directory"}
