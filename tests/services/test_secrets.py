"""Secrets: names and scopes are checked here, values are never in anything that comes back."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import respx

from osmosis_ai.api.client import PlatformClient
from osmosis_ai.errors import OsmosisError
from osmosis_ai.services.secrets import (
    check_name,
    check_value,
    delete_secret,
    list_secrets,
    parse_scope,
    require_secret,
    secret_item,
    set_secret,
    value_from_environment,
)
from tests.logins import FERN, IDENTITY, REFUSALS, TOKEN, use_platform

PATH = "/api/cli/environment-secrets"
VALUE = 'sk-canary "quoted"/ünï\n'
FULL: dict[str, Any] = {
    "id": "sec_1",
    "name": "OPENAI_API_KEY",
    "scope": "user",
    "created_at": "2026-05-01T09:00:00Z",
    "updated_at": "2026-05-02T09:00:00.5+02:00",
    "creator_name": "Mara",
    "updater_name": "Ada",
    "platform_url": f"{FERN}/fern-lab/secrets",
    "value": "sk-canary",
}
FULL_ITEM = {
    "id": "sec_1",
    "name": "OPENAI_API_KEY",
    "scope": "personal",
    "created_at": "2026-05-01T09:00:00.000Z",
    "updated_at": "2026-05-02T07:00:00.500Z",
    "creator_name": "Mara",
    "updater_name": "Ada",
}
NULLS = dict.fromkeys(FULL) | {"id": "sec_2"}


@pytest.fixture
def platform(monkeypatch: pytest.MonkeyPatch) -> Iterator[respx.MockRouter]:
    use_platform(monkeypatch)
    with respx.mock(base_url=FERN, assert_all_called=False) as router:
        yield router


@pytest.fixture
def client(platform: respx.MockRouter) -> Iterator[PlatformClient]:
    with PlatformClient(FERN, TOKEN, IDENTITY, token_origin="saved") as client:
        yield client


@pytest.mark.parametrize("name", ["A", "OPENAI_API_KEY", "K2_", "A" * 255])
def test_names_are_those_of_environment_variables(name: str) -> None:
    assert check_name(name) == name


@pytest.mark.parametrize("name", ["", "a", "2A", "_A", "A-B", "A B", "A\n", "Ä", "A" * 256, "sk-canary"])
def test_other_names_are_refused_and_not_repeated(name: str) -> None:
    with pytest.raises(OsmosisError) as caught:
        check_name(name)
    assert caught.value.code == "VALIDATION"
    assert "canary" not in f"{caught.value.message} {caught.value.details} {caught.value.hint}"


def test_scopes_are_personal_and_workspace() -> None:
    assert (parse_scope("personal"), parse_scope("workspace")) == ("personal", "workspace")
    for text in ("user", "all", "", "Personal"):
        with pytest.raises(OsmosisError, match="`personal` or `workspace`"):
            parse_scope(text)


def test_values_are_taken_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FROM_HERE", " sk-canary \n")
    assert value_from_environment("FROM_HERE") == " sk-canary \n"
    monkeypatch.setenv("FROM_HERE", "")
    for variable in ("FROM_HERE", "FROM_NOWHERE"):
        with pytest.raises(OsmosisError, match=variable) as caught:
            value_from_environment(variable)
        assert caught.value.code == "VALIDATION"
    with pytest.raises(OsmosisError, match="UTF-8") as caught:
        check_value("sk-canary\udcff", source="it")
    assert "canary" not in caught.value.message


def test_a_secret_is_stored_under_the_scope_of_the_wire(
    platform: respx.MockRouter, client: PlatformClient
) -> None:
    route = platform.post(PATH).respond(json=FULL)
    assert secret_item(set_secret(client, "OPENAI_API_KEY", VALUE, "personal")) == FULL_ITEM
    sent = route.calls.last.request
    assert json.loads(sent.content) == {"name": "OPENAI_API_KEY", "value": VALUE, "scope": "user"}
    assert sent.headers["x-osmosis-git"] == IDENTITY
    route.respond(json={"id": "sec_3", "scope": "workspace"})
    assert secret_item(set_secret(client, "A", VALUE, "workspace"))["scope"] == "workspace"


def test_a_reply_full_of_nulls_is_a_secret_too(platform: respx.MockRouter, client: PlatformClient) -> None:
    platform.post(PATH).respond(json=NULLS)
    item = secret_item(set_secret(client, "A", VALUE, "personal"))
    assert item == {**dict.fromkeys(FULL_ITEM), "id": "sec_2"}


@pytest.mark.parametrize(
    "reply",
    [
        {"status_code": 400, "json": {"error": f"bad {VALUE}", "value": VALUE, "issues": [VALUE]}},
        {"status_code": 403, "json": {"message": VALUE, "echo": {VALUE: [VALUE]}, "secret_value": "x"}},
        {"status_code": 500, "text": f"<html>{VALUE}"},
        {"status_code": 502, "text": json.dumps({"error": [VALUE]})},
        {"status_code": 200, "json": {"name": VALUE}},
    ],
)
def test_a_value_that_is_echoed_is_taken_out_of_the_error(
    platform: respx.MockRouter, client: PlatformClient, reply: dict[str, Any]
) -> None:
    platform.post(PATH).respond(**reply)
    with pytest.raises(OsmosisError) as caught:
        set_secret(client, "A", VALUE, "personal")
    error = caught.value
    assert "sk-canary" not in f"{error.message} {error.details} {error.hint} {vars(error)}"
    assert error.__cause__ is None


@pytest.mark.parametrize("scope, sent", [(None, "all"), ("personal", "user"), ("workspace", "workspace")])
def test_a_page_is_listed_by_scope(
    platform: respx.MockRouter, client: PlatformClient, scope: Any, sent: str
) -> None:
    page = {"environment_secrets": [FULL, NULLS], "total_count": 7, "has_more": True, "next_offset": 2}
    route = platform.get(PATH).respond(json={**page, "platform_url": f"{FERN}/x"})
    listing, url = list_secrets(client, scope, limit=2, everything=False)
    assert dict(route.calls.last.request.url.params) == {"limit": "2", "offset": "0", "scope": sent}
    assert [secret_item(item) for item in listing.items] == [
        FULL_ITEM,
        {**dict.fromkeys(FULL_ITEM), "id": "sec_2"},
    ]
    assert (listing.total_count, listing.has_more, listing.next_offset, url) == (7, True, 2, f"{FERN}/x")


@pytest.mark.parametrize(
    "body",
    [{"environment_secrets": []}, {"environment_secrets": [], "platform_url": None, "next_offset": None}],
)
def test_a_workspace_without_secrets_has_an_empty_list(
    platform: respx.MockRouter, client: PlatformClient, body: dict[str, Any]
) -> None:
    platform.get(PATH).respond(json=body)
    listing, url = list_secrets(client, limit=50, everything=True)
    assert (listing.items, listing.total_count, url) == ((), 0, None)


def _pages(platform: respx.MockRouter, **names_by_scope: list[str]) -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        query = request.url.params
        names = names_by_scope.get(query["scope"], [])
        offset = int(query["offset"])
        shown = [{"id": name, "name": name, "scope": query["scope"]} for name in names[offset : offset + 2]]
        following = offset + 2 if offset + 2 < len(names) else None
        return httpx.Response(200, json={"environment_secrets": shown, "next_offset": following})

    platform.get(PATH).mock(side_effect=answer)


def test_a_secret_is_found_on_any_page(platform: respx.MockRouter, client: PlatformClient) -> None:
    _pages(platform, user=["A", "B", "C", "D", "E"])
    require_secret(client, "E", "personal")


def test_a_secret_that_is_elsewhere_gets_the_command_for_there(
    platform: respx.MockRouter, client: PlatformClient
) -> None:
    _pages(platform, workspace=["A"])
    with pytest.raises(OsmosisError) as caught:
        require_secret(client, "A", "personal")
    assert caught.value.code == "NOT_FOUND"
    assert "osmosis secret delete A --scope workspace" in caught.value.message
    with pytest.raises(OsmosisError) as caught:
        require_secret(client, "B", "workspace")
    assert caught.value.message == 'Secret "B" was not found in workspace scope.'


@pytest.mark.parametrize("reply, code", REFUSALS)
def test_a_look_up_that_fails_decides_nothing_and_a_refusal_ends_it(
    platform: respx.MockRouter, client: PlatformClient, reply: dict[str, Any], code: str
) -> None:
    platform.get(PATH).respond(**reply)
    if code == "PLATFORM_ERROR":
        require_secret(client, "A", "personal")
        return
    with pytest.raises(OsmosisError) as caught:
        require_secret(client, "A", "personal")
    assert caught.value.code == code


def test_deleting_names_the_secret_in_the_body(platform: respx.MockRouter, client: PlatformClient) -> None:
    route = platform.delete(PATH).respond(204)
    delete_secret(client, "A", "personal")
    assert json.loads(route.calls.last.request.content) == {"name": "A", "scope": "user"}
    route.respond(404, json={"error": "there is no such secret"})
    with pytest.raises(OsmosisError) as caught:
        delete_secret(client, "A", "workspace")
    assert (caught.value.code, caught.value.message) == ("NOT_FOUND", "there is no such secret")
