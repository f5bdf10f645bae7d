"""What a platform does not offer is a sentence, found out without a call of its own where one came before."""

from __future__ import annotations

import pytest
import respx

from osmosis_ai.api.capabilities import Capability
from osmosis_ai.api.client import PlatformClient
from osmosis_ai.api.http_errors import PlatformError
from osmosis_ai.services.capabilities import require_offered

HERE = "https://platform.fern.example"


def _answering(router: respx.MockRouter, header: str | None, status: int = 200) -> PlatformClient:
    headers = {} if header is None else {"X-Osmosis-Capabilities": header}
    router.get("/api/cli/datasets").respond(
        status, json={"datasets": []} if status == 200 else {"error": "no"}, headers=headers
    )
    router.get("/api/cli/verify").respond(
        json={"user": {"id": "u1", "email": "a@fern.example"}, "token_id": "t1"}, headers=headers
    )
    return PlatformClient(HERE, "osm_u_canary", "fern/maze")


@pytest.mark.parametrize("header", ["eval-imports, deletion", "deletion,something-newer, eval-imports "])
def test_what_the_header_names_is_offered_and_nothing_else(header: str) -> None:
    with respx.mock(base_url=HERE, assert_all_called=False) as router, _answering(router, header) as client:
        client.datasets.list()
        require_offered(client, Capability.EVAL_IMPORTS)
        require_offered(client, Capability.DELETION)
        with pytest.raises(PlatformError) as refused:
            require_offered(client, Capability.BENCHMARKS)
        assert len(router.calls) == 1  # what is known need not be asked
    assert refused.value.message == f"This platform does not support benchmark runs: {HERE}."
    assert refused.value.platform_code == "NOT_OFFERED"
    assert refused.value.details == {"platform_code": "NOT_OFFERED", "capability": "benchmarks"}


def test_a_platform_without_the_header_has_what_is_documented_and_nothing_of_ours() -> None:
    with respx.mock(base_url=HERE, assert_all_called=False) as router, _answering(router, None) as client:
        require_offered(client, Capability.BENCHMARKS)
        with pytest.raises(PlatformError, match="does not support deleting datasets and runs"):
            require_offered(client, Capability.DELETION)


def test_an_error_without_the_header_says_nothing_of_the_platform_and_one_with_it_does() -> None:
    with respx.mock(base_url=HERE, assert_all_called=False) as router:
        with _answering(router, None, status=503) as client, pytest.raises(PlatformError):
            client.request("GET", "/api/cli/datasets", model=_model())
        assert client.offers is None
        with _answering(router, "", status=503) as client, pytest.raises(PlatformError):
            client.request("GET", "/api/cli/datasets", model=_model())
        assert client.offers == frozenset()


def _model() -> type:
    from osmosis_ai.api.wire.datasets import DatasetList

    return DatasetList
