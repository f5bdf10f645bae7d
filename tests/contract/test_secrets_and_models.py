"""Changes of secrets and deployments."""

from __future__ import annotations

import pytest

from osmosis_ai.api.client import PlatformClient
from osmosis_ai.api.http_errors import PlatformError
from osmosis_ai.services.models import deploy, undeploy
from osmosis_ai.services.secrets import delete_secret, set_secret
from tests.contract.conftest import Wire, nulled
from tests.contract.test_replies import SECRET


@pytest.mark.parametrize("reply", ['{"id": "sec_1"}', nulled(SECRET)])
def test_setting_a_secret(client: PlatformClient, wire: Wire, reply: str) -> None:
    wire.answers("POST", "/api/cli/environment-secrets", reply)
    found = set_secret(client, "A", "canary-value", "workspace")
    assert wire.sent == {"name": "A", "value": "canary-value", "scope": "workspace"}
    assert (found.id, found.name, found.scope, found.created_at) == ("sec_1", None, None, None)


def test_an_error_does_not_show_the_value(client: PlatformClient, wire: Wire) -> None:
    wire.answers(
        "POST",
        "/api/cli/environment-secrets",
        '{"error": "canary-value is weak", "value": "canary-value", "field": "value"}',
        status=400,
    )
    with pytest.raises(PlatformError) as caught:
        set_secret(client, "A", "canary-value", "personal")
    assert caught.value.message == "[REDACTED] is weak"
    assert "canary-value" not in f"{caught.value.details} {caught.value.body}"


def test_deleting_a_secret(client: PlatformClient, wire: Wire) -> None:
    wire.answers("DELETE", "/api/cli/environment-secrets", "", status=204)
    delete_secret(client, "A", "personal")
    assert wire.sent == {"name": "A", "scope": "user"}


def test_deploying_and_undeploying(client: PlatformClient, wire: Wire) -> None:
    wire.answers("POST", "/api/cli/models/m/deploy", '{"id": "lo_1", "model_name": "m", "status": "active"}')
    deployed, _ = deploy(client, "m")
    assert deployed.status == "active"
    assert wire.sent == {}
    wire.answers(
        "POST", "/api/cli/models/m/undeploy", '{"id": "lo_1", "model_name": null, "status": "inactive"}'
    )
    assert undeploy(client, "m").status == "inactive"
