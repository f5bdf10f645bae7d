"""What the platform says that it offers is there, and what it does not say is not to be begun."""

from __future__ import annotations

from fastapi.testclient import TestClient

from osmosis_ai.api.capabilities import Capability
from osmosis_ai.platform.http.versioning import OFFERED

ROUTES = {
    Capability.EVAL_IMPORTS: ("post", "/api/cli/eval-runs/imports"),
    Capability.DELETION: ("delete", "/api/cli/eval-runs/{name_or_id}"),
    Capability.EVAL_JOURNALS: ("get", "/api/cli/eval-runs/{name_or_id}/samples/manifest"),
    Capability.EVAL_RETRIES: ("post", "/api/cli/eval-runs/{name_or_id}/retry"),
    Capability.EVAL_SAMPLES: ("get", "/api/cli/eval-runs/{name_or_id}/samples"),
    Capability.MODEL_DOWNLOADS: ("get", "/api/cli/models/{name}/download"),
    Capability.QUICKSTART: ("get", "/api/cli/quickstart"),
    Capability.SERVED_AGENTS: ("get", "/api/cli/rollout-servers"),
    Capability.TRAINING_RESUME: ("post", "/api/cli/training-runs/{name_or_id}/resume"),
    Capability.SECRET_AUDIT: ("get", "/api/cli/environment-secrets/audit"),
    Capability.RUN_EVENTS: ("get", "/api/cli/eval-runs/{name_or_id}/events"),
    Capability.TRAINING_VALIDATION: ("get", "/api/cli/training-runs/{name_or_id}/validation"),
}


def test_everything_that_is_offered_has_its_route(client: TestClient) -> None:
    paths = client.get("/api/openapi.json").json()["paths"]
    for capability in OFFERED:
        method, path = ROUTES[capability]
        assert method in paths[path], capability
