"""A list is the array under its resource's key: a reply without it is no empty list."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.contract.conftest import PlatformClient, PlatformError, Wire

LISTS: dict[str, tuple[str, Callable[[PlatformClient], Any]]] = {
    "datasets": ("/api/cli/datasets?limit=50&offset=0", lambda c: c.datasets.list()),
    "environment_secrets": (
        "/api/cli/environment-secrets?limit=50&offset=0&scope=all",
        lambda c: c.secrets.list(),
    ),
    "handouts": ("/api/cli/environment-secrets/audit?limit=50&offset=0", lambda c: c.secrets.handouts()),
    "rollouts": ("/api/cli/rollouts?limit=50&offset=0", lambda c: c.rollouts.list()),
    "eval_runs": ("/api/cli/eval-runs?limit=50&offset=0", lambda c: c.eval_runs.list()),
    "training_runs": ("/api/cli/training-runs?limit=50&offset=0", lambda c: c.training_runs.list()),
    "models": ("/api/cli/models/base?limit=50&offset=0", lambda c: c.models.list_base()),
    "models ": ("/api/cli/models/lora?limit=50&offset=0", lambda c: c.models.list_lora()),
    "workspaces": ("/api/cli/workspaces", lambda c: c.workspaces.list()),
}


@pytest.mark.parametrize("key", LISTS)
@pytest.mark.parametrize("reply", ['{"%s": null}', '{"items": [], "total_count": 0}', "{}", ""])
def test_a_list_without_its_key_is_an_error_that_names_it(
    client: PlatformClient, wire: Wire, key: str, reply: str
) -> None:
    path, call = LISTS[key]
    wire.answers("GET", path, reply.replace("%s", key.strip()))
    with pytest.raises(PlatformError, match=f"cannot be read: `{key.strip()}`"):
        call(client)


@pytest.mark.parametrize("key", LISTS)
def test_an_empty_list_is_empty(client: PlatformClient, wire: Wire, key: str) -> None:
    path, call = LISTS[key]
    wire.answers("GET", path, f'{{"{key.strip()}": []}}')
    assert getattr(call(client), key.strip()) == []
