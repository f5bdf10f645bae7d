"""What the transport tries again, what it follows, and what it never does twice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import pytest
import respx

from osmosis_ai.api.client import PlatformClient
from osmosis_ai.api.http_errors import PlatformError
from osmosis_ai.api.wire.runs import EvalRunSubmit
from osmosis_ai.config.sections import Experiment
from tests.api.conftest import BASE, TOKEN

_MODEL = {"id": "m", "model_name": "m"}

# Trying again


def test_reading_is_tried_three_times(
    client: PlatformClient, platform: respx.MockRouter, slept: list[float]
) -> None:
    route = platform.get("/api/cli/datasets")
    route.side_effect = [
        httpx.ConnectError("refused"),
        httpx.Response(503, headers={"Retry-After": "3"}),
        httpx.Response(200, json={"datasets": []}),
    ]
    assert client.datasets.list().datasets == []
    assert slept == [0.2, 3]


@pytest.mark.parametrize(
    "status, calls", [(429, 3), (502, 3), (503, 3), (504, 3), (500, 1), (404, 1), (401, 1)]
)
def test_reading_is_tried_again_only_when_that_may_help(
    client: PlatformClient, platform: respx.MockRouter, status: int, calls: int
) -> None:
    route = platform.get("/api/cli/datasets").respond(status)
    with pytest.raises(PlatformError) as caught:
        client.datasets.list()
    assert caught.value.status in (status, None) and route.call_count == calls


def test_a_read_that_took_too_long_is_not_read_again(
    client: PlatformClient, platform: respx.MockRouter
) -> None:
    route = platform.get("/api/cli/datasets").mock(side_effect=httpx.ReadTimeout("x"))
    with pytest.raises(PlatformError, match="timed out"):
        client.datasets.list()
    assert route.call_count == 1


@pytest.mark.parametrize("failure", [httpx.ConnectError("x"), httpx.Response(503), httpx.Response(429)])
def test_nothing_is_submitted_twice(client: PlatformClient, platform: respx.MockRouter, failure: Any) -> None:
    route = platform.post("/api/cli/eval-runs").mock(side_effect=[failure])
    with pytest.raises(PlatformError):
        client.eval_runs.submit(_SUBMIT)
    assert route.call_count == 1


def test_completing_a_dataset_is_tried_five_times_whatever_goes_wrong(
    client: PlatformClient, platform: respx.MockRouter, slept: list[float]
) -> None:
    route = platform.post("/api/cli/datasets/d/complete")
    route.side_effect = [
        httpx.ReadTimeout("x"),
        httpx.Response(500),
        httpx.Response(200, text="<html>"),
        httpx.Response(200, json={}),
        httpx.Response(200, json={"id": "d", "status": "processing"}),
    ]
    assert client.datasets.complete("d", extension="csv").status == "processing"
    assert slept == [1, 2, 4, 8]


def test_completing_stops_at_once_at_another_refusal(
    client: PlatformClient, platform: respx.MockRouter
) -> None:
    route = platform.post("/api/cli/datasets/d/complete").respond(409, json={"error": "gone"})
    with pytest.raises(PlatformError, match="gone"):
        client.datasets.complete("d", extension="csv")
    assert route.call_count == 1


def test_download_urls_are_asked_for_three_times(
    client: PlatformClient, platform: respx.MockRouter, slept: list[float]
) -> None:
    route = platform.post("/api/cli/eval-runs/r/samples/download-urls").respond(500)
    with pytest.raises(PlatformError):
        client.eval_runs.download_urls("r", [])
    assert route.call_count == 3 and slept == [0.5, 1]


_SUBMIT = EvalRunSubmit(
    experiment_config=Experiment(rollout="r", entrypoint="e", model_path="m", dataset="d")
)


@pytest.mark.parametrize(
    "path, answer, call",
    [
        ("models/m/deploy", _MODEL | {"status": "active"}, lambda client: client.models.deploy("m")),
        ("models/m/undeploy", _MODEL | {"status": "inactive"}, lambda client: client.models.undeploy("m")),
        ("training-runs/r/stop", {"id": "r"}, lambda client: client.training_runs.stop("r")),
        ("eval-runs/check", {"dry_run": True}, lambda client: client.eval_runs.check(_SUBMIT)),
        ("datasets/d/abort", {}, lambda client: client.datasets.abort("d")),
        (
            "environment-secrets",
            {"id": "s", "name": "KEY"},
            lambda client: client.secrets.set("KEY", "value", scope="user"),
        ),
    ],
)
def test_what_may_be_said_twice_is_said_again_where_the_answer_broke_off(
    client: PlatformClient,
    platform: respx.MockRouter,
    slept: list[float],
    path: str,
    answer: dict[str, Any],
    call: Callable[[PlatformClient], object],
) -> None:
    route = platform.post(f"/api/cli/{path}")
    route.side_effect = [
        httpx.RemoteProtocolError("the server closed the connection"),
        httpx.Response(503, headers={"Retry-After": "3"}),
        httpx.Response(200, json=answer),
    ]
    call(client)
    assert route.call_count == 3 and slept == [0.2, 3]
    assert len({sent.request.content for sent in route.calls}) == 1


# Redirects


def test_reading_follows_a_redirect_within_the_platform(
    client: PlatformClient, platform: respx.MockRouter
) -> None:
    platform.get("/api/cli/datasets").respond(307, headers={"Location": "/prefix/other"})
    other = platform.get("/other").respond(json={"datasets": []})
    client.datasets.list()
    assert other.calls.last.request.headers["authorization"] == f"Bearer {TOKEN}"


@pytest.mark.parametrize(
    "target",
    ["https://evil.example/x", "http://osmosis.fern.example/x", "https://osmosis.fern.example:444/x"],
)
def test_the_token_follows_no_redirect_elsewhere(client: PlatformClient, target: str) -> None:
    with respx.mock(assert_all_called=False) as router:
        router.get(f"{BASE}/api/cli/datasets").respond(302, headers={"Location": target})
        elsewhere = router.get(target).respond(json={})
        with pytest.raises(PlatformError, match="redirects to") as caught:
            client.datasets.list()
    assert not elsewhere.called
    assert caught.value.hint and "osmosis --platform " in caught.value.hint


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_post_is_never_turned_into_something_else(
    client: PlatformClient, platform: respx.MockRouter, status: int
) -> None:
    platform.post("/api/cli/eval-runs/r/stop").respond(status, headers={"Location": "/prefix/other"})
    other = platform.route(path="/prefix/other").respond(json={})
    with pytest.raises(PlatformError, match="not followed"):
        client.eval_runs.stop("r")
    assert not other.called


def test_redirects_in_a_circle_end(client: PlatformClient, platform: respx.MockRouter) -> None:
    platform.get("/api/cli/datasets").respond(302, headers={"Location": "/prefix/api/cli/datasets"})
    with pytest.raises(PlatformError, match="without end"):
        client.datasets.list()
