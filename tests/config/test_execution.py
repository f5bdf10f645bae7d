"""What a run may ask of the machine that executes it, in `[advanced.execution]`: one table for both kinds of run."""

from __future__ import annotations

from typing import Any

import pytest

from osmosis_ai.config.checks import EVAL, TRAINING, ConfigKind
from osmosis_ai.config.execution import ExecutionSection, execution_issues, read_execution
from osmosis_ai.config.release_checks import read_settings, release_issues
from osmosis_ai.platform.runs.submit.run_request import check_body

WHOLE: dict[str, Any] = {
    "cpus": 2,
    "gpus": 0,
    "memory_gb": 4.5,
    "pool": "gpu-a100.spot_1",
    "network": "none",
    "isolation": "required",
    "servers": 8,
}


def found(execution: Any, name: str = "execution") -> dict[str, tuple[str, str | None]]:
    """Return what is wrong with a table, by key, with its suggestion."""
    issues = execution_issues({"advanced": {name: execution}})
    return {issue.key: (issue.message, issue.suggestion) for issue in issues}


def test_a_table_that_is_right_is_read_whole() -> None:
    assert found(WHOLE) == {}
    assert read_execution({"execution": WHOLE}) == ExecutionSection(**WHOLE)
    assert read_execution({"lora_rank": 3}) == read_execution(None) == ExecutionSection()


@pytest.mark.parametrize(
    "written, message, suggestion",
    [
        ({"isolaton": "auto"}, "Unrecognized key", "isolation"),
        ({"isolation": "requird"}, 'must be one of auto, required, off, got "requird"', "required"),
        ({"network": True}, "must be one of host, none, got true", None),
        ({"servers": 0}, "must be at least 1, got 0", None),
        ({"servers": 9}, "must be at most 8, got 9", None),
        ({"servers": True}, "must be an integer, got true", None),
        ({"cpus": 0}, "must be greater than 0, got 0", None),
        ({"gpus": -1}, "must be at least 0, got -1", None),
        ({"memory_gb": float("inf")}, "must be a finite number, got inf", None),
        ({"pool": "../x"}, "must be the name of a pool of workers", None),
        ({"pool": ""}, "must be the name of a pool of workers", None),
    ],
)
def test_what_is_wrong_in_it_is_said_by_key(
    written: dict[str, Any], message: str, suggestion: str | None
) -> None:
    ((key, (said, meant)),) = found(written).items()
    assert key == f"advanced.execution.{next(iter(written))}"
    assert said.startswith(message)
    assert meant == suggestion
    assert read_execution({"execution": written}) == ExecutionSection()


def test_less_isolation_than_a_machine_gives_is_refused_and_nothing_else_of_an_earlier_run_is_lost() -> None:
    asked = {**WHOLE, "isolation": "off"}
    ((key, (said, _)),) = found(asked).items()
    assert key == "advanced.execution.isolation"
    assert said.startswith(
        "a config may ask for more isolation than a machine gives by itself, never for less"
    )
    assert "OSMOSIS_ISOLATION=off" in said
    assert read_execution({"execution": asked}) == ExecutionSection(**asked)


def test_a_misspelled_table_is_told_from_tables_of_others() -> None:
    assert found({"cpus": 1}, "excution") == {"advanced.excution": ("Unrecognized table", "execution")}
    assert found({"max_parallel": 6}, "engine") == {}
    assert found(3) == {"advanced.execution": ("must be a table, got 3", None)}


@pytest.mark.parametrize(
    ("key", "value", "suggestion"), [("networks", "none", "network"), ("isolation", "off", None)]
)
@pytest.mark.parametrize("kind", [EVAL, TRAINING])
def test_a_platform_refuses_what_a_command_doubts(
    kind: ConfigKind, key: str, value: str, suggestion: str | None
) -> None:
    advanced = {"execution": {key: value}}
    (doubt,) = release_issues({"advanced": advanced}, kind)
    _, issues = check_body({"advanced_config": advanced}, kind)
    assert doubt in issues
    assert (doubt.key, doubt.suggestion) == (f"advanced.execution.{key}", suggestion)


def test_the_trainer_does_not_call_the_table_ignored() -> None:
    advanced = {"execution": WHOLE, "other_trainers_key": 1}
    assert read_settings({"advanced": advanced}).ignored == ("other_trainers_key",)
