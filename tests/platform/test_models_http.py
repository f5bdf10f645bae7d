from __future__ import annotations

import pytest
from fastapi.testclient import TestClient

from tests.platform.conftest import assert_flat_error


def test_the_built_in_model_is_the_base_model(api: TestClient) -> None:
    listed = api.get("/api/cli/models/base").json()

    assert listed == {
        "models": [
            {
                "id": "osmosis/tiny",
                "model_name": "osmosis/tiny",
                "base_model": "osmosis/tiny",
                "creator_name": "Osmosis",
            }
        ],
        "total_count": 1,
        "has_more": False,
        "next_offset": None,
    }
    assert api.get("/api/cli/models/base", params={"offset": 1}).json()["models"] == []


def test_without_adapters_the_list_is_empty_and_offers_no_deployment(api: TestClient) -> None:
    assert api.get("/api/cli/models/lora").json() == {
        "models": [],
        "total_count": 0,
        "has_more": False,
        "next_offset": None,
    }


@pytest.mark.parametrize("name", ["mine", "a%2Fb", "..%2F..", "%C3%A4", "x" * 300])
def test_an_unknown_adapter_is_not_found_whatever_is_done_with_it(api: TestClient, name: str) -> None:
    for reply in (
        api.get(f"/api/cli/models/{name}"),
        api.post(f"/api/cli/models/{name}/deploy", json={}),
        api.post(f"/api/cli/models/{name}/undeploy", json={}),
    ):
        assert_flat_error(reply, 404, "MODEL_NOT_FOUND")


def test_models_are_for_members(client: TestClient) -> None:
    assert_flat_error(client.get("/api/cli/models/base"), 401, "AUTH_HEADER_MISSING")
