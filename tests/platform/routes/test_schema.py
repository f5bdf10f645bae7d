"""Whatever is sent to a route the platform describes, it answers as the contract says: never a 5xx."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings

from tests.conftest import NIGHTLY
from tests.platform.conftest import World, application

pytestmark = pytest.mark.integration

if TYPE_CHECKING:
    import schemathesis

# All routes are described; what a stranger request does to one is left to `make nightly`.
EXAMPLES_PER_ROUTE = 60 if NIGHTLY else 1


@pytest.fixture
def started(world: World) -> Iterator[World]:
    """Services whose threads end with the test: schemathesis starts the application and never stops it."""
    yield world
    for each in (world.services.platform_shards, world.services.maintenance, world.services.datasets.ingest):
        each.close()


def test_no_request_breaks_a_route(started: World) -> None:
    import schemathesis  # takes a second

    member = started.member()
    described = schemathesis.openapi.from_asgi("/api/openapi.json", application(started))
    for found in described.get_all_operations():

        @given(case=found.ok().as_strategy())
        @settings(
            max_examples=EXAMPLES_PER_ROUTE,
            deadline=None,
            derandomize=not NIGHTLY,
            database=None,
            suppress_health_check=list(HealthCheck),
        )
        def check(case: schemathesis.Case) -> None:
            # The member asks, whatever headers were generated: what lies behind is what is tested.
            check_reply(case, case.call(headers=member.headers))

        check()


def check_reply(case: schemathesis.Case, reply: schemathesis.Response) -> None:
    """Check that a reply is one that the contract knows, whatever was asked."""
    assert reply.status_code < 500, f"{case.as_curl_command()}\n{reply.text}"
    assert reply.status_code < 300 or reply.status_code >= 400
    if reply.status_code >= 400 and case.path.startswith("/api/cli"):
        body = reply.json()
        assert isinstance(body["error"], str) and isinstance(body["code"], str)
        assert reply.status_code != 422
