from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import pytest

from osmosis_ai.driving.callback_registry import TerminalCallbackResult
from osmosis_ai.driving.classify import CATEGORIES, Verdict, category_of, classify, rejected
from osmosis_ai.llm.errors import Category, ModelCallError
from osmosis_ai.rollout.types import GraderCompleteRequest, RolloutCompleteRequest

SAMPLE = {"messages": [], "reward": 1.0}
NULLS = {"err_message": None, "err_category": None}


def terminal(
    completion: dict[str, Any] | None, grader: dict[str, Any] | None, source: Any = "grader"
) -> TerminalCallbackResult:
    return TerminalCallbackResult(
        "r1",
        source,
        completion=RolloutCompleteRequest.model_validate({"rollout_id": "r1", **completion})
        if completion
        else None,
        grader=GraderCompleteRequest.model_validate({"rollout_id": "r1", **grader}) if grader else None,
    )


DONE = {"status": "success"}
GRADED = {"status": "success", "sample": SAMPLE}
UNGRADED = {"status": "failure", "sample": None, **NULLS}


@pytest.mark.parametrize(
    ("case", "completion", "grader", "expected"),
    [
        ("graded", DONE, GRADED, ("success", 1.0, None, None, None)),
        ("graded, completion callback lost", None, GRADED, ("success", 1.0, None, None, None)),
        (
            "run raises",
            {"status": "failure", "err_message": "boom", "err_category": "agent_error"},
            UNGRADED,
            ("failed", None, "agent_error", "agent", "exception"),
        ),
        (
            "agent timeout",
            {"status": "failure", "err_message": "5.0s deadline", "err_category": "timeout"},
            UNGRADED,
            ("failed", None, "timeout", "agent", "timeout"),
        ),
        (
            "the server could not run it",
            {"status": "failure", "err_message": "Internal server error"},
            UNGRADED,
            ("failed", None, "workflow_failed", "rollout_server", "server_error"),
        ),
        (
            "a failed workflow has no reward, whatever the grader says",
            {"status": "failure", "err_category": "agent_error"},
            GRADED,
            ("failed", None, "agent_error", "agent", "exception"),
        ),
        (
            "no grader, or nothing to grade by",
            DONE,
            UNGRADED,
            ("failed", None, "grader_failed", "grader", "nothing_to_grade"),
        ),
        (
            "the agent left no sample",
            DONE,
            {"status": "failure", "err_message": "No sample to grade", "err_category": "validation_error"},
            ("failed", None, "validation_error", "agent", "nothing_to_grade"),
        ),
        (
            "the grader set no reward",
            DONE,
            {"status": "failure", "sample": {"messages": []}, "err_category": "validation_error"},
            ("failed", None, "validation_error", "grader", "invalid_value"),
        ),
        (
            "grader timeout",
            DONE,
            {"status": "failure", "sample": {"messages": []}, "err_category": "timeout"},
            ("failed", None, "timeout", "grader", "timeout"),
        ),
        (
            "taken out by the grader",
            DONE,
            {"status": "success", "sample": {"messages": [], "remove_sample": True}},
            ("skipped", None, None, None, None),
        ),
        (
            "no grader callback",
            DONE,
            None,
            ("failed", None, "missing_grader_callback", "rollout_server", "no_result"),
        ),
    ],
)
def test_every_outcome_on_the_wire_has_one_verdict(
    case: str, completion: Any, grader: Any, expected: tuple[Any, ...]
) -> None:
    verdict = classify(terminal(completion, grader))
    found = (verdict.status, verdict.reward, verdict.error_type, verdict.boundary, verdict.category)
    assert found == expected, case
    assert verdict.category is None or verdict.category in CATEGORIES
    assert (verdict.error is None) == (verdict.status != "failed")


def test_a_timeout_belongs_to_the_rollout_server() -> None:
    verdict = classify(terminal(DONE, None, source="timeout"))
    assert (verdict.error_type, verdict.boundary) == ("callback_timeout", "rollout_server")


def test_a_workflow_that_failed_on_its_model_is_the_providers_failure_in_the_providers_words() -> None:
    error = ModelCallError("auth", "Incorrect API key provided.", model_path="openai/x", status=401)
    completion = {
        "status": "failure",
        "err_message": "the model answered HTTP 401",
        "err_category": "agent_error",
    }
    verdict = classify(terminal(completion, UNGRADED), error)
    assert (verdict.error_type, verdict.boundary, verdict.category) == ("agent_error", "provider", "auth")
    assert "Incorrect API key provided." in (verdict.error or "")


@pytest.mark.parametrize("category", get_args(Category))
def test_every_failure_of_a_model_call_has_a_category_of_its_own(category: Category) -> None:
    error = ModelCallError(category, "", model_path="openai/x")
    assert category_of("agent_error", error) in CATEGORIES


def test_every_category_is_documented() -> None:
    page = (Path(__file__).parents[2] / "docs" / "eval-run.md").read_text()
    assert all(f"| `{word}` | {meaning} |" in page for word, meaning in CATEGORIES.items())


def test_a_model_failure_the_workflow_survived_changes_nothing() -> None:
    error = ModelCallError("server", "overloaded", model_path="openai/x", status=503)
    assert classify(terminal(DONE, GRADED), error) == Verdict("success", reward=1.0)


def test_a_rejected_rollout_is_the_servers_failure() -> None:
    verdict = rejected(422, "no such field")
    assert (verdict.status, verdict.error_type, verdict.boundary) == (
        "failed",
        "rollout_protocol_error",
        "rollout_server",
    )
