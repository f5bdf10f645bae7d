"""The transport: what travels, what comes back, and when no answer comes. One route stands for all."""

from __future__ import annotations

import json
import logging
import socket
import ssl
from typing import Any

import httpx
import pytest
import respx

from osmosis_ai._version import __version__
from osmosis_ai.api.client import ClientWarning, PlatformClient
from osmosis_ai.api.http_errors import PlatformError
from osmosis_ai.api.wire.base import WireModel
from osmosis_ai.errors import OsmosisError
from tests.api.conftest import BASE, GIT, TOKEN

# What travels


def test_a_request_carries_the_headers_of_the_contract_and_no_others(
    client: PlatformClient, platform: respx.MockRouter
) -> None:
    route = platform.get("/api/cli/datasets").respond(json={"datasets": []})
    client.datasets.list()
    sent = route.calls.last.request
    assert dict(sent.headers) == {
        "host": "osmosis.fern.example",
        "authorization": f"Bearer {TOKEN}",
        "content-type": "application/json",
        "user-agent": f"osmosis-cli/{__version__}",
        "x-osmosis-cli-version": __version__,
        "x-osmosis-git": GIT,
        "accept-encoding": "identity",
        "connection": "keep-alive",
    }
    assert str(sent.url) == f"{BASE}/api/cli/datasets?limit=50&offset=0"


def test_an_empty_mutation_sends_an_empty_object(client: PlatformClient, platform: respx.MockRouter) -> None:
    route = platform.post("/api/cli/eval-runs/r/stop").respond(204)
    client.eval_runs.stop("r")
    assert route.calls.last.request.content == b"{}"


def test_text_beyond_ascii_travels_escaped(client: PlatformClient, platform: respx.MockRouter) -> None:
    route = platform.post("/x").respond(json={})
    client.post("/x", {"name": "naïve €"}, model=WireModel)
    assert route.calls.last.request.content == b'{"name": "na\\u00efve \\u20ac"}'


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_what_json_cannot_carry_is_refused_here(client: PlatformClient, number: float) -> None:
    with pytest.raises(OsmosisError, match="nan and inf"):
        client.post("/x", {"advanced_config": {"x": number}}, model=WireModel)


def test_a_call_about_a_repository_is_refused_without_one(platform: respx.MockRouter) -> None:
    with pytest.raises(PlatformError) as caught, PlatformClient(BASE, TOKEN) as client:
        client.datasets.list()
    assert caught.value.platform_code == "GIT_SCOPE_HEADER_REQUIRED"
    assert caught.value.code == "VALIDATION"
    assert not platform.calls


@pytest.mark.parametrize("token", ["", "osm with space", "osm\nX-Evil: 1", "osm_ü"])
def test_a_token_that_is_none_is_refused_and_not_repeated(token: str) -> None:
    with pytest.raises(OsmosisError) as caught:
        PlatformClient(BASE, token)
    assert not token or token not in caught.value.message


def test_a_platform_in_the_clear_is_refused_unless_it_is_this_machine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(OsmosisError, match="insecure"):
        PlatformClient("http://platform.example", TOKEN)
    PlatformClient("http://127.0.0.1:8000", TOKEN).close()
    monkeypatch.setenv("OSMOSIS_ALLOW_INSECURE_PLATFORM_URL", "1")
    PlatformClient("http://platform.example", TOKEN).close()


def test_a_proxy_setting_that_cannot_be_used_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "gopher://me:hunter2@proxy.example")
    with pytest.raises(OsmosisError, match="proxy") as caught:
        PlatformClient(BASE, TOKEN)
    assert caught.value.code == "NETWORK"
    assert "hunter2" not in caught.value.message
    PlatformClient("http://localhost:8000", TOKEN).close()


def test_a_missing_certificate_file_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", "/nowhere/ca.pem")
    with pytest.raises(OsmosisError, match="certificates cannot be loaded"):
        PlatformClient(BASE, TOKEN)


def test_neither_repr_nor_log_shows_the_token(
    client: PlatformClient, platform: respx.MockRouter, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    platform.get("/api/cli/datasets").respond(json={"datasets": []})
    client.datasets.list()
    assert TOKEN not in f"{client!r} {caplog.text}"


# What comes back


@pytest.mark.parametrize("content", [b"", b"  \n", b"{}"])
@pytest.mark.parametrize("status", [200, 201, 202, 204])
def test_any_2xx_is_a_success_and_nothing_is_an_empty_object(
    client: PlatformClient, platform: respx.MockRouter, status: int, content: bytes
) -> None:
    platform.post("/api/cli/datasets/d/abort").respond(status, content=content)
    client.datasets.abort("d")


@pytest.mark.parametrize("content", [b"[]", b'"x"', b"<html></html>", b"{", b"\xff", b"[" * 200_000])
def test_a_success_that_is_no_json_object_is_a_platform_error(
    client: PlatformClient, platform: respx.MockRouter, content: bytes
) -> None:
    platform.post("/x").respond(200, content=content)
    with pytest.raises(PlatformError, match="Invalid JSON response from platform") as caught:
        client.post("/x", {}, model=WireModel)
    assert caught.value.code == "PLATFORM_ERROR"
    assert "status_code" not in caught.value.details
    assert ("the reply is a web page" in (caught.value.hint or "")) is content.startswith(b"<")


def test_a_success_without_what_it_must_have_names_that_and_quotes_nothing(
    client: PlatformClient, platform: respx.MockRouter
) -> None:
    platform.get("/api/cli/datasets/d").respond(json={"file_size": "osm_secret", "status": "uploaded"})
    with pytest.raises(PlatformError, match=r"GET /prefix/api/cli/datasets/d cannot be read.*`id`") as caught:
        client.datasets.get("d")
    assert "osm_secret" not in caught.value.message


def test_nan_in_a_reply_counts_as_absent(client: PlatformClient, platform: respx.MockRouter) -> None:
    platform.get("/api/cli/eval-runs/r/metrics").respond(content=b'{"overview": {"pass_rate": NaN}}')
    assert client.eval_runs.metrics("r").overview.pass_rate is None


def test_a_reply_without_end_is_cut_off(
    client: PlatformClient, platform: respx.MockRouter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("osmosis_ai.api.client._LARGEST_REPLY_BYTES", 1000)
    platform.post("/x").respond(200, content=b" " * 1001)
    with pytest.raises(PlatformError, match="too large"):
        client.post("/x", {}, model=WireModel)


def test_a_reply_that_drips_is_given_up_when_the_time_is_over(platform: respx.MockRouter) -> None:
    platform.post("/x").respond(200, content=b"{}")
    client = PlatformClient(BASE, TOKEN, GIT, timeout_s=-1)
    with client, pytest.raises(PlatformError, match="Connection error: timed out"):
        client.post("/x", {}, model=WireModel)


# The connection


@pytest.mark.parametrize(
    "failure, words, mend",
    [
        (
            httpx.ConnectError("[Errno 111] Connection refused"),
            "Connection error: Connection refused",
            "no server listens on that port",
        ),
        (httpx.ReadTimeout("x"), "Connection error: timed out", "slow to answer: try again"),
        (httpx.ConnectTimeout("x"), "Connection error: timed out", "check the network"),
        (
            httpx.RemoteProtocolError("Server disconnected"),
            "Connection error: Server disconnected",
            "check the network",
        ),
        (httpx.ReadError(""), "Connection error: ReadError", "check the network"),
    ],
)
def test_a_platform_that_does_not_answer_is_named(
    client: PlatformClient, platform: respx.MockRouter, failure: Exception, words: str, mend: str
) -> None:
    platform.post("/x").mock(side_effect=failure)
    with pytest.raises(PlatformError) as caught:
        client.post("/x", {}, model=WireModel)
    error = caught.value
    assert error.message == f"{words} ({BASE})"
    assert (error.code, error.details, error.status) == ("PLATFORM_ERROR", {"platform_url": BASE}, None)
    assert error.hint and mend in error.hint


def _hint(url: str, error: Exception, cause: Exception | None = None) -> str:
    def fail(_: httpx.Request) -> httpx.Response:
        raise error from cause

    client = PlatformClient(url, TOKEN, GIT, transport=httpx.MockTransport(fail))
    with client, pytest.raises(PlatformError) as caught:
        client.post("/x", {}, model=WireModel)
    return caught.value.hint or ""


@pytest.mark.parametrize("failure", [httpx.ReadTimeout("x"), httpx.ConnectTimeout("x")])
def test_a_platform_on_this_machine_that_is_slow_is_not_to_be_started(failure: Exception) -> None:
    hint = _hint("http://127.0.0.1:8642", failure)
    assert "slow to answer" in hint
    assert "osmosis platform start" not in hint


def test_a_name_nobody_knows_and_a_port_without_tls_are_told_apart() -> None:
    unknown = httpx.ConnectError("[Errno -2] Name or service not known")
    assert "name is unknown" in _hint(BASE, unknown, socket.gaierror(-2, "x"))
    no_tls = httpx.ConnectError("[SSL: WRONG_VERSION_NUMBER] wrong version number")
    assert "does not speak HTTPS" in _hint("https://127.0.0.1:8642", no_tls, ssl.SSLError())


def test_a_platform_on_this_machine_that_is_not_there_is_to_be_started(slept: list[float]) -> None:
    client = PlatformClient("http://127.0.0.1:1", TOKEN, GIT)
    with client, pytest.raises(PlatformError, match="refused") as caught:
        client.datasets.list()
    assert caught.value.hint and "osmosis platform start" in caught.value.hint


def test_a_certificate_nobody_knows_is_explained(client: PlatformClient, platform: respx.MockRouter) -> None:
    text = "[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: self-signed certificate (_ssl.c:1006)"
    platform.post("/x").mock(side_effect=httpx.ConnectError(text))
    with pytest.raises(PlatformError, match="self-signed") as caught:
        client.post("/x", {}, model=WireModel)
    assert caught.value.hint and "SSL_CERT_FILE" in caught.value.hint


# The version


@pytest.mark.parametrize(
    "status, code", [("upgrade_available", "UPGRADE_AVAILABLE"), ("deprecated", "DEPRECATED")]
)
def test_a_version_warning_is_given_once(platform: respx.MockRouter, status: str, code: Any) -> None:
    headers = {"X-Osmosis-Version-Status": status, "X-Osmosis-Version-Message": "0.4 is out"}
    platform.get("/api/cli/datasets").respond(json={"datasets": []}, headers=headers)
    said: list[ClientWarning] = []
    for _ in range(2):
        with PlatformClient(BASE, TOKEN, GIT, on_warning=said.append) as client:
            client.datasets.list()
            client.datasets.list()
    assert said == [ClientWarning(code, "0.4 is out")]


@pytest.mark.parametrize(
    "headers",
    [
        {"X-Osmosis-Version-Status": "current", "X-Osmosis-Version-Message": "x"},
        {"X-Osmosis-Version-Status": "deprecated"},
        {"X-Osmosis-Version-Status": "odd", "X-Osmosis-Version-Message": "x"},
        {"X-Osmosis-Latest": "9"},
    ],
)
def test_other_version_headers_say_nothing(
    client: PlatformClient, platform: respx.MockRouter, headers: dict[str, str]
) -> None:
    platform.get("/api/cli/datasets").respond(json={"datasets": []}, headers=headers)
    client.datasets.list()
    assert client.warnings == []


def test_a_body_sent_is_only_what_was_set(client: PlatformClient, platform: respx.MockRouter) -> None:
    route = platform.post("/api/cli/datasets").respond(json={"id": "d"})
    client.datasets.create("maze", size_bytes=7, extension="csv")
    client.datasets.create("maze", size_bytes=7, extension="csv", overwrite_id="ds_31")
    first, second = (json.loads(call.request.content) for call in route.calls)
    assert first == {"file_name": "maze", "file_size": 7, "extension": "csv"}
    assert second == {**first, "overwrite_dataset_id": "ds_31"}
