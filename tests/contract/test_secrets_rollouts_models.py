from __future__ import annotations

import pytest

from tests.contract.conftest import PlatformClient, PlatformError, Wire, nulled

SECRET = """{"id": "sec_1", "name": "OPENAI_API_KEY", "scope": "user", "created_at": "2026-11-03T08:12:44Z",
 "updated_at": "2026-11-04T08:12:44Z", "creator_name": "Mara", "updater_name": "Ned",
 "platform_url": "https://platform.osmosis.ai/fern-lab/secrets"}"""

HANDOUT = """{"id": "sho_1", "names": ["OPENAI_API_KEY"], "run_id": "run_1", "run_name": "amber-otter", "attempt": 2,
 "machine": "basement", "pool": "gpu", "handed_at": "2026-11-03T08:12:44Z"}"""

ROLLOUT = """{"id": "ro_1", "name": "maze", "description": "walks", "is_active": false,
 "last_synced_commit_sha": "0f3a", "last_synced_at": "2026-11-03T08:12:44Z", "repo_full_name": "fern/maze",
 "created_at": "2026-11-03T08:12:44Z"}"""

BASE_MODEL = """{"id": "bm_1", "model_name": "fern/base-32b", "base_model": "fern/base-32b", "creator_name": "Mara",
 "created_at": "2026-11-03T08:12:44Z", "updated_at": "2026-11-03T08:12:44Z"}"""

LORA = """{"id": "lo_1", "model_name": "maze-lora", "base_model": "fern/base-32b", "training_run_name": "amber-otter",
 "checkpoint_step": 40, "reward": 0.75, "created_at": "2026-11-03T08:12:44Z", "deployment_status": "active",
 "deployed_at": "2026-11-03T08:12:44Z", "deployed_by": "Mara", "hf_upload_status": "done",
 "hf_url": "https://hf.example/x", "uploaded_by": "Ned", "inference_model": "fern/base-32b:maze-lora",
 "platform_url": "https://platform.osmosis.ai/fern-lab/models/lo_1", "is_internal_user": false}"""


@pytest.mark.parametrize(
    "reply, wanted",
    [
        (HANDOUT, ("amber-otter", 2, "basement", "gpu")),
        (nulled(HANDOUT, keep=("id", "names", "run_id")), (None, None, None, None)),
        ('{"id": "sho_1", "names": ["OPENAI_API_KEY"], "run_id": "run_1"}', (None, None, None, None)),
    ],
    ids=["full", "nulls", "minimal"],
)
def test_the_audit_says_who_was_handed_which_names(
    client: PlatformClient, wire: Wire, reply: str, wanted: tuple[object, ...]
) -> None:
    wire.answers(
        "GET",
        "/api/cli/environment-secrets/audit?limit=20&offset=40",
        f'{{"handouts": [{reply}], "total_count": 41, "has_more": false, "next_offset": null}}',
    )
    (found,) = client.secrets.handouts(limit=20, offset=40).handouts
    assert (found.id, found.names, found.run_id) == ("sho_1", ["OPENAI_API_KEY"], "run_1")
    assert (found.run_name, found.attempt, found.machine, found.pool) == wanted


@pytest.mark.parametrize("scope", ["all", "workspace", "user"])
def test_secrets_are_listed_by_scope(client: PlatformClient, wire: Wire, scope: str) -> None:
    wire.answers(
        "GET",
        f"/api/cli/environment-secrets?limit=50&offset=0&scope={scope}",
        f'{{"environment_secrets": [{SECRET}], "platform_url": "https://p", "total_count": 1, "next_offset": null}}',
    )
    page = client.secrets.list(scope=scope)  # type: ignore[arg-type]
    (found,) = page.environment_secrets
    assert (found.id, found.name, found.scope, found.updater_name) == (
        "sec_1",
        "OPENAI_API_KEY",
        "user",
        "Ned",
    )
    assert page.platform_url == "https://p" and page.total_count == 1


@pytest.mark.parametrize("reply", ['{"id": "sec_1"}', nulled(SECRET)])
def test_a_secret_minimal_and_null(client: PlatformClient, wire: Wire, reply: str) -> None:
    wire.answers("POST", "/api/cli/environment-secrets", reply)
    found = client.secrets.set("A", "canary-value", scope="workspace")
    assert wire.sent == {"name": "A", "value": "canary-value", "scope": "workspace"}
    assert (found.id, found.name, found.scope, found.created_at) == ("sec_1", None, None, None)


def test_a_secrets_value_is_in_no_error(client: PlatformClient, wire: Wire) -> None:
    wire.answers(
        "POST",
        "/api/cli/environment-secrets",
        '{"error": "canary-value is weak", "value": "canary-value", "field": "value"}',
        status=400,
    )
    with pytest.raises(PlatformError) as caught:
        client.secrets.set("A", "canary-value", scope="user")
    assert caught.value.message == "[REDACTED] is weak"
    assert "canary-value" not in f"{caught.value.details} {caught.value.body}"


def test_a_secret_is_deleted_by_a_body(client: PlatformClient, wire: Wire) -> None:
    wire.answers("DELETE", "/api/cli/environment-secrets", "", status=204)
    client.secrets.delete("A", scope="user")
    assert wire.sent == {"name": "A", "scope": "user"}


def test_rollouts_full(client: PlatformClient, wire: Wire) -> None:
    wire.answers("GET", "/api/cli/rollouts?limit=50&offset=0&branch=exp%2F2", f'{{"rollouts": [{ROLLOUT}]}}')
    (found,) = client.rollouts.list(branch="exp/2").rollouts
    assert (found.id, found.name, found.description, found.is_active) == ("ro_1", "maze", "walks", False)
    assert (found.last_synced_commit_sha, found.repo_full_name) == ("0f3a", "fern/maze")


@pytest.mark.parametrize("rollout", ['{"id": "ro_1"}', nulled(ROLLOUT)])
def test_rollouts_minimal_and_null(client: PlatformClient, wire: Wire, rollout: str) -> None:
    wire.answers("GET", "/api/cli/rollouts?limit=50&offset=0", f'{{"rollouts": [{rollout}]}}')
    (found,) = client.rollouts.list().rollouts
    assert (found.name, found.is_active, found.last_synced_at) == (None, True, None)


@pytest.mark.parametrize(
    "model, name", [(BASE_MODEL, "fern/base-32b"), ('{"id": "bm_1"}', None), (nulled(BASE_MODEL), None)]
)
def test_base_models(client: PlatformClient, wire: Wire, model: str, name: str | None) -> None:
    wire.answers(
        "GET", "/api/cli/models/base?limit=50&offset=0", f'{{"models": [{model}], "total_count": 1}}'
    )
    (found,) = client.models.list_base().models
    assert (found.id, found.model_name) == ("bm_1", name)


def test_lora_models_full(client: PlatformClient, wire: Wire) -> None:
    wire.answers(
        "GET",
        "/api/cli/models/lora?limit=50&offset=0",
        f'{{"models": [{LORA}], "active_deployments": 1, "max_active_deployments": 3, "total_count": 1}}',
    )
    page = client.models.list_lora()
    (found,) = page.models
    assert (found.model_name, found.checkpoint_step, found.reward) == ("maze-lora", 40, 0.75)
    assert (found.deployment_status, page.active_deployments, page.max_active_deployments) == ("active", 1, 3)


def test_a_lora_model_that_is_not_deployed_differs_from_one_that_cannot_be(
    client: PlatformClient, wire: Wire
) -> None:
    wire.answers(
        "GET",
        "/api/cli/models/lora?limit=50&offset=0",
        '{"models": [{"id": "a", "deployment_status": null}, {"id": "b"}]}',
    )
    page = client.models.list_lora()
    deployable = ["deployment_status" in model.model_fields_set for model in page.models]
    assert deployable == [True, False]
    assert "active_deployments" not in page.model_fields_set


@pytest.mark.parametrize("reply", ['{"id": "lo_1"}', nulled(LORA)])
def test_a_lora_model_minimal_and_null(client: PlatformClient, wire: Wire, reply: str) -> None:
    wire.answers("GET", "/api/cli/models/a%2Fb", reply)
    found = client.models.get("a/b")
    assert (found.inference_model, found.reward, found.is_internal_user) == (None, None, False)


def test_deploying_and_undeploying(client: PlatformClient, wire: Wire) -> None:
    wire.answers("POST", "/api/cli/models/m/deploy", '{"id": "lo_1", "model_name": "m", "status": "active"}')
    assert client.models.deploy("m").status == "active"
    assert wire.sent == {}
    wire.answers(
        "POST", "/api/cli/models/m/undeploy", '{"id": "lo_1", "model_name": null, "status": "inactive"}'
    )
    assert client.models.undeploy("m").status == "inactive"
