from __future__ import annotations

import math
import threading
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from osmosis_ai.rollout import (
    AgentWorkflowConfig,
    AgentWorkflowOutput,
    BaseConfig,
    ConcurrencyConfig,
    ExecutionRequest,
    GraderCompleteRequest,
    GraderConfig,
    RolloutCompleteRequest,
    RolloutInitRequest,
    RolloutSample,
)
from osmosis_ai.rollout.types import CancelRolloutsRequest
from osmosis_ai.rollout.types.output import coerce_output
from osmosis_ai.rollout.types.protocol import is_single_path_segment

MESSAGES = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ok"}]


class TestConfigs:
    def test_a_config_takes_extra_fields_and_arbitrary_objects(self) -> None:
        class MyConfig(AgentWorkflowConfig):
            name: str = "mine"
            lock: Any = None
            guard: threading.Event = threading.Event()

        config = MyConfig(lock=object(), something="else")

        assert config.concurrency.max_concurrent is None
        assert config.model_extra == {"something": "else"}

    def test_a_config_needs_a_name(self) -> None:
        with pytest.raises(ValidationError):
            BaseConfig()  # type: ignore[call-arg]

    def test_assignments_are_validated(self) -> None:
        config = GraderConfig(name="g")

        with pytest.raises(ValidationError):
            config.name = 3  # type: ignore[assignment]

    @pytest.mark.parametrize("value", [0, -1])
    def test_concurrency_starts_at_one(self, value: int) -> None:
        with pytest.raises(ValidationError):
            ConcurrencyConfig(max_concurrent=value)


class TestRolloutSample:
    @pytest.mark.parametrize("reward", [math.nan, math.inf, -math.inf, "much", None, 1, 0.5])
    def test_a_reward_is_finite_or_absent(self, reward: Any) -> None:
        sample = RolloutSample()
        if reward in ("much", math.inf, -math.inf) or reward != reward:
            with pytest.raises(ValidationError):
                RolloutSample(reward=reward)
            with pytest.raises(ValidationError):
                sample.reward = reward
            assert sample.reward is None
        else:
            sample.reward = reward
            assert sample.reward == reward

    def test_the_archived_messages_are_a_copy_taken_at_construction(self) -> None:
        sample = RolloutSample(messages=[{"role": "user", "content": [{"type": "text", "text": "hi"}]}])

        sample.messages[0]["content"][0]["text"] = "changed by the grader"

        assert sample.trajectory_messages == [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]

    def test_archived_messages_given_explicitly_stay_as_given(self) -> None:
        assert RolloutSample(messages=MESSAGES, trajectory_messages=None).trajectory_messages is None
        assert (
            RolloutSample(messages=MESSAGES, trajectory_messages=MESSAGES[:1]).trajectory_messages
            == MESSAGES[:1]
        )

    def test_assigning_a_field_does_not_take_the_copy_again(self) -> None:
        sample = RolloutSample(messages=MESSAGES)
        sample.messages = []
        sample.reward = 1.0

        assert sample.trajectory_messages == MESSAGES

    def test_messages_that_cannot_be_copied_cost_the_archive_not_the_sample(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        sample = RolloutSample(messages=[{"role": "user", "content": threading.Lock()}])

        assert sample.trajectory_messages is None
        assert "cannot be copied" in caplog.text

    def test_any_sequence_of_mappings_serves_as_messages(self) -> None:
        assert RolloutSample(messages=tuple(MESSAGES)).messages == MESSAGES  # type: ignore[arg-type]

    def test_the_archived_messages_are_never_on_the_wire(self) -> None:
        assert set(RolloutSample(messages=MESSAGES).model_dump()) == {
            "messages",
            "label",
            "reward",
            "remove_sample",
            "metrics",
            "extra_fields",
        }

    def test_a_clean_sample_is_its_own_json_safe_copy(self) -> None:
        sample = RolloutSample(metrics={"a": 1, "b": {"c": [1.5, None, "x", True]}})

        assert sample.json_safe_copy() is sample

    def test_numpy_becomes_plain_and_what_json_cannot_hold_is_dropped_with_one_warning(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        sample = RolloutSample(extra_fields={"set": {1}})
        odd: dict[Any, Any] = {
            "score": np.float32(0.5),
            "count": np.int64(3),
            "nan": math.nan,
            "inf": np.float64(math.inf),
            7: "seven",
            np.int64(8): "eight",
            ("a", "b"): 1,
            "nested": {"keep": [1, math.nan, np.int64(2)], "object": object()},
            "pair": (1, 2),
        }
        sample.metrics.update(odd)

        safe = sample.json_safe_copy()

        assert safe.metrics == {
            "score": 0.5,
            "count": 3,
            "7": "seven",
            "8": "eight",
            "nested": {"keep": [1, 2]},
            "pair": [1, 2],
        }
        assert safe.extra_fields == {}
        assert {type(safe.metrics["score"]), type(safe.metrics["count"])} == {float, int}
        assert len(caplog.records) == 1
        assert math.isnan(sample.metrics["nan"])


class TestOutput:
    def test_none_defers_to_the_sample_source(self) -> None:
        assert coerce_output(None) is None

    def test_a_list_is_the_messages(self) -> None:
        output = coerce_output(MESSAGES)

        assert output is not None and output.messages == MESSAGES and output.metrics == {}

    def test_a_metric_set_to_nan_in_place_is_caught(self) -> None:
        output = AgentWorkflowOutput(messages=MESSAGES)
        output.metrics["bad"] = math.nan

        with pytest.raises(ValidationError):
            coerce_output(output)

    @pytest.mark.parametrize("value", ["text", {"messages": []}, 3])
    def test_anything_else_is_a_type_error_that_names_what_came(self, value: Any) -> None:
        with pytest.raises(TypeError, match=type(value).__name__):
            coerce_output(value)

    def test_unknown_fields_are_refused(self) -> None:
        with pytest.raises(ValidationError):
            AgentWorkflowOutput(message=MESSAGES)  # type: ignore[call-arg]


class TestProtocol:
    @pytest.mark.parametrize(
        ("model", "required"),
        [
            (RolloutInitRequest, {"initial_messages", "chat_completions_url", "completion_callback_url"}),
            (RolloutCompleteRequest, {"status"}),
            (GraderCompleteRequest, {"status"}),
        ],
    )
    def test_the_required_fields_are_those_of_the_wire(self, model: Any, required: set[str]) -> None:
        assert {name for name, field in model.model_fields.items() if field.is_required()} == required

    def test_keys_are_hidden_from_a_repr(self) -> None:
        request = RolloutInitRequest(
            initial_messages=[],
            chat_completions_url="u",
            completion_callback_url="u",
            controller_api_key="K-one",
            llm_api_key="K-two",
        )

        assert "K-" not in repr(request)

    @pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a\\b", "a\0b"])
    def test_an_id_is_a_single_path_segment(self, name: str) -> None:
        assert not is_single_path_segment(name)
        with pytest.raises(ValidationError):
            ExecutionRequest(id=name, prompt=[])

    @pytest.mark.parametrize("seconds", [math.nan, math.inf])
    def test_a_budget_is_finite(self, seconds: float) -> None:
        with pytest.raises(ValidationError):
            ExecutionRequest(id="a", prompt=[], agent_timeout_sec=seconds)

    @pytest.mark.parametrize("seconds", [0, -1.5, None])
    def test_a_budget_may_be_expired_or_absent(self, seconds: float | None) -> None:
        assert ExecutionRequest(id="a", prompt=[], agent_timeout_sec=seconds).agent_timeout_sec == seconds

    @pytest.mark.parametrize("selector", [{}, {"ids": ["a"], "all": True}, {"prefix": "a", "ids": []}])
    def test_a_cancellation_has_exactly_one_selector(self, selector: dict[str, Any]) -> None:
        with pytest.raises(ValidationError, match="exactly one"):
            CancelRolloutsRequest(**selector)
