"""The samples of a training run's newest validation over HTTP."""

from __future__ import annotations

import json
from typing import Any

import pytest
from fastapi.testclient import TestClient

from osmosis_ai.platform.runs.leases import Leases
from osmosis_ai.platform.runs.work.validation_files import ValidationFiles
from osmosis_ai.platform.runs.working_directory import WorkingDirectory
from osmosis_ai.platform.services import PlatformServices
from osmosis_ai.redaction import Redactor
from osmosis_ai.training.runs.validation_samples import ValidationSamples
from tests.platform.conftest import Member, assert_flat_error
from tests.platform.training_desk import DeskSink
from tests.platform.viewer.runs_world import add_run
from tests.viewer.source_contract import leave_validation, sample_record

RUNS = "/api/cli/training-runs"


def validate(services: PlatformServices, run_id: str, step: int) -> None:
    """Publish a validation of three samples, of the second of which there is a conversation."""
    records = [
        sample_record(0, 0, 1.0),
        sample_record(1, 0, 0.5, notes="Nearly."),
        sample_record(2, 0, error="no"),
    ]
    samples = ValidationSamples.of(records, step=step, pass_threshold=1.0)
    directory, leases = (
        WorkingDirectory(services.config.runs_dir, run_id).training,
        Leases(services.db, services.clock),
    )
    leave_validation(directory, samples, {(1, 0): b'{"steps": [%d]}' % step})
    lease = leases.claim(run_id, f"worker-{step}")
    assert lease is not None
    sink = DeskSink(lease, leases, services.blobs, services.clock)
    files = ValidationFiles(sink, sink.stored().validation, Redactor(), directory)
    files.publish()
    leases.release(run_id, f"worker-{step}")


@pytest.fixture
def run_id(services: PlatformServices, member: Member) -> str:
    return add_run(services, member, "keen-owl", kind="training", status="running", completed_at=None).id


def page(api: TestClient, run: str, **query: Any) -> dict[str, Any]:
    found: dict[str, Any] = api.get(f"{RUNS}/{run}/validation", params=query).json()
    return found


def test_the_samples_come_page_by_page_without_a_score_first(
    api: TestClient, services: PlatformServices, run_id: str
) -> None:
    assert page(api, "keen-owl") == {}
    validate(services, run_id, 4)
    first = page(api, "keen-owl", limit=2)
    rest = page(api, run_id, limit=2, cursor=first["next_cursor"])
    assert [each["row"] for each in (*first["samples"], *rest["samples"])] == [2, 1, 0]
    assert (first["step"], first["total"], first["pass_threshold"]) == (4, 3, 1.0)
    assert (first["samples"][1]["notes"], first["samples"][0]["error"]) == ("Nearly.", "no")
    assert "next_cursor" not in rest


def test_a_cursor_of_the_validation_before_is_refused(
    api: TestClient, services: PlatformServices, run_id: str
) -> None:
    validate(services, run_id, 4)
    cursor = page(api, run_id, limit=1)["next_cursor"]
    validate(services, run_id, 8)
    assert_flat_error(api.get(f"{RUNS}/keen-owl/validation", params={"cursor": cursor}), 409, "CONFLICT")
    assert_flat_error(api.get(f"{RUNS}/keen-owl/validation", params={"cursor": "x"}), 400, "VALIDATION")


def test_a_conversation_is_given_as_text_or_it_is_said_that_there_is_none(
    api: TestClient, services: PlatformServices, run_id: str
) -> None:
    validate(services, run_id, 4)
    said = api.get(f"{RUNS}/keen-owl/validation/1/0").json()
    assert json.loads(said["text"]) == {"steps": [4]} and said["size"] == len(said["text"])
    missing = api.get(f"{RUNS}/keen-owl/validation/0/0").json()
    assert (missing.get("text"), missing["missing"]) == (
        None,
        "The platform has no trajectory of this sample.",
    )
    for place in ("9999999999999999999999/0", "-1/0"):
        assert api.get(f"{RUNS}/keen-owl/validation/{place}").json()["missing"]
    assert api.get(f"{RUNS}/keen-owl/validation/x/0").status_code in (400, 404, 422)


def test_a_stranger_finds_no_such_run(
    api: TestClient, services: PlatformServices, run_id: str, stranger: Member
) -> None:
    validate(services, run_id, 4)
    for run in ("keen-owl", run_id):
        for path in ("validation", "validation/1/0"):
            assert_flat_error(api.get(f"{RUNS}/{run}/{path}", headers=stranger.headers), 404, "NOT_FOUND")
