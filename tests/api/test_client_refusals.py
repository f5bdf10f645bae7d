"""What a refusal of the platform says, whatever shape it has."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
import respx

from osmosis_ai._version import __version__
from osmosis_ai.api.client import PlatformClient
from osmosis_ai.api.credentials import Credentials
from osmosis_ai.api.http_errors import PlatformError
from osmosis_ai.api.wire.base import WireModel
from osmosis_ai.api.wire.runs import EvalRunSubmit, RunSecrets
from osmosis_ai.config.sections import Experiment
from tests.api.conftest import BASE, GIT, TOKEN


def _failure(client: PlatformClient, **reply: Any) -> PlatformError:
    with respx.mock(base_url=BASE) as router:
        router.post("/x").mock(return_value=httpx.Response(**reply))
        with pytest.raises(PlatformError) as caught:
            client.post("/x", None, model=WireModel)
    error = caught.value
    assert TOKEN not in f"{error.message} {error.hint} {error.details} {error.body}"
    return error


# Refusals


@pytest.mark.parametrize(
    "status, code",
    [
        (400, "VALIDATION"),
        (402, "PLATFORM_ERROR"),
        (403, "PLATFORM_ERROR"),
        (404, "NOT_FOUND"),
        (409, "CONFLICT"),
        (410, "PLATFORM_ERROR"),
        (413, "PLATFORM_ERROR"),
        (422, "PLATFORM_ERROR"),
        (429, "RATE_LIMITED"),
        (500, "PLATFORM_ERROR"),
        (503, "PLATFORM_ERROR"),
    ],
)
def test_a_status_is_a_code_and_the_body_is_kept(client: PlatformClient, status: int, code: str) -> None:
    body = {
        "error": "No.",
        "code": "SOME_CODE",
        "field": "name",
        "existing_dataset_id": "ds_31",
        "extra": [1],
    }
    error = _failure(client, status_code=status, json=body)
    assert (error.message, error.code, error.status, error.platform_code) == (
        "No.",
        code,
        status,
        "SOME_CODE",
    )
    assert error.details == {"platform_code": "SOME_CODE", **body, "status_code": status}


def test_billing_and_subscription_have_codes_of_their_own(client: PlatformClient) -> None:
    def code(body: dict[str, Any], status: int = 403) -> str:
        return _failure(client, status_code=status, json=body).code

    assert code({"error": "x", "code": "SUBSCRIPTION_REQUIRED"}) == "SUBSCRIPTION_REQUIRED"
    assert code({"error": "x", "code": "BILLING_REQUIRED"}) == "BILLING_REQUIRED"
    assert code({"error": "Your Subscription ended"}) == "SUBSCRIPTION_REQUIRED"
    assert code({"error": "x", "code": "BILLING_REQUIRED"}, 402) == "PLATFORM_ERROR"


def test_every_issue_is_a_line_with_its_correction(client: PlatformClient) -> None:
    issues = [
        {"key": "training.total_epoch", "message": "unknown key", "key_correction": "training.total_epochs"},
        {"key": "n", "message": None},
        {"message": "too many"},
        "a plain sentence",
        {},
        None,
        5,
    ]
    error = _failure(client, status_code=400, json={"error": "Rejected", "issues": issues})
    assert error.message.splitlines() == [
        "Rejected",
        "  - training.total_epoch: unknown key (did you mean 'training.total_epochs'?)",
        "  - n",
        "  - too many",
        "  - a plain sentence",
    ]


@pytest.mark.parametrize("issues", [None, "x", {"a": 1}, 5])
def test_issues_that_are_no_list_are_ignored(client: PlatformClient, issues: Any) -> None:
    assert (
        _failure(client, status_code=400, json={"error": "Rejected", "issues": issues}).message == "Rejected"
    )


def test_message_is_the_second_choice(client: PlatformClient) -> None:
    assert (
        _failure(client, status_code=400, json={"error": "", "message": "Really no"}).message == "Really no"
    )


@pytest.mark.parametrize(
    "reply, excerpt",
    [
        ({"text": "<html>" + "x" * 300}, "x" * 200),
        (
            {
                "text": "<!DOCTYPE html>\n<html>\n<head><title>502 Bad Gateway</title>\n<style>\nb {x: 1}\n</style>"
                "<script>\nlet a = 1 < 2\n</script></head>\n<body>\n<center><h1>nginx &amp; co</h1>\n</body></html>"
            },
            "502 Bad Gateway nginx & co",
        ),
        ({"text": "Traceback:\n  File 1\n\tFile 2\r\nOops\n"}, "Traceback: File 1 File 2 Oops"),
        ({"text": f"<html>{TOKEN[:4]}&#{ord(TOKEN[4])};{TOKEN[5:]}</html>"}, "[REDACTED]"),
        ({"json": {"error": {"message": "nested"}}}, '{"error":{"message":"nested"}}'),
        ({"json": {"detail": "Not Found"}}, '{"detail":"Not Found"}'),
        ({"content": b"bad \xff \x1b[31mred"}, "bad \ufffd [31mred"),
    ],
)
def test_a_body_that_is_no_error_of_ours_is_shown_in_part(
    client: PlatformClient, reply: dict[str, Any], excerpt: str
) -> None:
    error = _failure(client, status_code=502, **reply)
    assert error.message == f"API error: HTTP 502. Response: {excerpt}"
    assert error.details["status_code"] == 502


def test_an_empty_error_still_says_its_status(client: PlatformClient) -> None:
    assert _failure(client, status_code=418).message == "API error: HTTP 418."


def test_escape_sequences_do_not_reach_the_terminal(client: PlatformClient) -> None:
    body = {"error": "a\x1b]0;evil\x07b", "issues": ["c\x1b[2Jd"]}
    assert "\x1b" not in _failure(client, status_code=400, json=body).message


@pytest.mark.parametrize(
    "origin, platform_code, words",
    [
        ("environment", "TOKEN_EXPIRED", "OSMOSIS_TOKEN has expired."),
        ("environment", "TOKEN_REVOKED", "OSMOSIS_TOKEN has been revoked."),
        ("environment", "TOKEN_INVALID", f"OSMOSIS_TOKEN is not valid on {BASE}."),
        ("environment", None, f"OSMOSIS_TOKEN is not valid on {BASE}."),
        ("given", "TOKEN_INVALID", f"This token is not valid on {BASE}."),
        ("given", "UNKNOWN_AUTH_ERROR", f"This token is not valid on {BASE}."),
        ("saved", "TOKEN_EXPIRED", f"Your session on {BASE} has expired."),
        ("saved", "TOKEN_REVOKED", f"Your session on {BASE} has been revoked."),
        ("saved", None, f"Your session on {BASE} has expired or is no longer valid."),
        ("saved", "AUTH_HEADER_MISSING", f"The token did not reach {BASE}."),
        ("saved", "TOKEN_MISSING", f"The token did not reach {BASE}."),
    ],
)
def test_a_401_says_what_is_wrong_with_which_token(
    origin: Any, platform_code: str | None, words: str
) -> None:
    with PlatformClient(BASE, TOKEN, GIT, token_origin=origin) as client:
        error = _failure(client, status_code=401, json={"error": f"bad {TOKEN}", "code": platform_code})
    assert (error.message, error.code, error.details) == (words, "AUTH_REQUIRED", {})
    assert error.hint


@pytest.mark.parametrize("platform_code", ["TOKEN_REVOKED", "TOKEN_EXPIRED"])
def test_a_given_token_that_has_ended_is_not_said_to_be_copied_badly(platform_code: str) -> None:
    with PlatformClient(BASE, TOKEN, GIT, token_origin="given") as client:
        error = _failure(client, status_code=401, json={"code": platform_code})
    assert error.hint == "use another token of this platform"


def test_a_401_without_a_token_says_to_log_in() -> None:
    with PlatformClient(BASE, None, GIT) as client:
        error = _failure(client, status_code=401, json={"code": "AUTH_HEADER_MISSING"})
    assert error.message == "Not logged in. Run 'osmosis auth login' first."


@pytest.mark.parametrize("source, words", [("environment", "OSMOSIS_TOKEN"), ("keyring", "Your session")])
def test_a_client_for_credentials_knows_where_they_came_from(source: Any, words: str) -> None:
    credentials = Credentials(token=TOKEN, platform_url=BASE, source=source)
    with PlatformClient.from_credentials(credentials, git_identity=GIT) as client:
        assert _failure(client, status_code=401, json={"code": "TOKEN_EXPIRED"}).message.startswith(words)


@pytest.mark.parametrize(
    "body, words",
    [
        ({"status": "unsupported", "message": "Version 0.3 is gone."}, "Version 0.3 is gone."),
        ({"status": "other", "message": "x"}, f"({__version__})"),
        ({"status": "unsupported", "message": None}, f"({__version__})"),
        ({}, f"({__version__})"),
    ],
)
def test_a_426_uses_the_platforms_words_only_in_the_agreed_form(
    client: PlatformClient, body: dict[str, Any], words: str
) -> None:
    error = _failure(client, status_code=426, json=body)
    assert error.code == "UPGRADE_REQUIRED"
    assert words in error.message


@pytest.mark.parametrize(
    "platform_code, status, code, words",
    [
        ("GIT_SCOPE_REQUIRED", 400, "VALIDATION", "which repository"),
        ("GIT_SCOPE_HEADER_REQUIRED", 400, "VALIDATION", "which repository"),
        ("GIT_SCOPE_INVALID", 400, "VALIDATION", "does not accept 'fern/maze'"),
        ("GIT_SCOPE_HEADER_INVALID", 400, "VALIDATION", "does not accept 'fern/maze'"),
        ("GIT_REPOSITORY_NOT_CONNECTED", 404, "NOT_FOUND", "fern/maze is not connected"),
        ("GIT_REPOSITORY_ACCESS_DENIED", 403, "PLATFORM_ERROR", "not a member of the workspace"),
        ("GIT_SCOPE_HEADER_ACCESS_DENIED", 403, "PLATFORM_ERROR", "no workspace"),
    ],
)
def test_a_refusal_of_the_repository_says_what_to_do(
    client: PlatformClient, platform_code: str, status: int, code: str, words: str
) -> None:
    body = {"error": "subscription nonsense", "code": platform_code}
    error = _failure(client, status_code=status, json=body)
    assert error.code == code
    assert words in error.message and "nonsense" not in error.message
    assert error.hint and "{" not in error.hint
    assert error.details["platform_code"] == platform_code


def test_values_to_hide_are_in_no_error_however_the_platform_echoes_them(client: PlatformClient) -> None:
    client.hide(["s3cret", "s3cret-and-more"])
    body = {
        "error": "s3cret-and-more?",
        "issues": [{"key": "s3cret"}],
        "value": "other",
        "x": [{"s3cret": "s3cret"}],
    }
    error = _failure(client, status_code=400, json=body)
    assert "s3cret" not in f"{error.message} {error.details}" and "other" not in str(error.details)
    cut = _failure(client, status_code=502, text="x" * 195 + "s3cret-and-more")
    assert "s3cr" not in cut.message


def test_what_a_submit_provides_is_hidden_from_its_own_errors(
    client: PlatformClient, platform: respx.MockRouter
) -> None:
    run = EvalRunSubmit(
        experiment_config=Experiment(rollout="r", entrypoint="main.py", model_path="m", dataset="d"),
        secrets=RunSecrets(required=["A"], provided={"A": "canary-value"}),
    )
    platform.post("/api/cli/eval-runs").respond(400, json={"error": "A=canary-value is bad"})
    with pytest.raises(PlatformError) as caught:
        client.eval_runs.submit(run)
    assert caught.value.message == "A=[REDACTED] is bad"
    assert "canary-value" not in repr(run)
