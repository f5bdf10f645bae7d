from __future__ import annotations

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from osmosis_ai.api import routes
from osmosis_ai.errors import OsmosisError


@pytest.mark.parametrize(
    "name, encoded",
    [
        ("maze-walks", "maze-walks"),
        ("acme/toy@3", "acme%2Ftoy%403"),
        ("a b", "a%20b"),
        ("50%", "50%25"),
        ("naïve", "na%C3%AFve"),
        ("a?b#c", "a%3Fb%23c"),
        (".", "%2E"),
        ("..", "%2E%2E"),
        ("...", "%2E%2E%2E"),
        ("x" * 300, "x" * 300),
    ],
)
def test_a_name_is_one_segment_whatever_is_in_it(name: str, encoded: str) -> None:
    assert routes.dataset(name) == f"/api/cli/datasets/{encoded}"
    assert routes.run_logs(routes.EVAL_RUNS, name) == f"/api/cli/eval-runs/{encoded}/logs"


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1))
def test_the_http_client_sends_a_segment_as_it_was_encoded(name: str) -> None:
    path = routes.dataset_download(name)
    assert httpx.URL(f"http://platform.example/prefix{path}").raw_path.decode() == f"/prefix{path}"


@pytest.mark.parametrize("name", ["", "\ud800"])
def test_a_name_that_is_no_name_is_refused(name: str) -> None:
    with pytest.raises(OsmosisError):
        routes.dataset(name)


def test_every_route_is_where_the_contract_puts_it() -> None:
    assert [
        routes.VERIFY,
        routes.DEVICE_AUTHORIZE,
        routes.DEVICE_TOKEN,
        routes.WORKSPACES,
        routes.token("ct_01J8"),
        routes.DATASETS,
        routes.dataset_complete("ds_1"),
        routes.dataset_abort("ds_1"),
        routes.dataset_logs("ds_1"),
        routes.ENVIRONMENT_SECRETS,
        routes.SECRET_AUDIT,
        routes.ROLLOUTS,
        routes.BASE_MODELS,
        routes.LORA_MODELS,
        routes.model("m"),
        routes.model_deploy("m"),
        routes.model_undeploy("m"),
        routes.EVAL_RUNS,
        routes.run_metrics(routes.EVAL_RUNS, "r"),
        routes.run_stop(routes.EVAL_RUNS, "r"),
        routes.run_manifest(routes.EVAL_RUNS, "r", "samples"),
        routes.run_download_urls(routes.EVAL_RUNS, "r", "samples"),
    ] == [
        "/api/cli/verify",
        "/api/cli/device/authorize",
        "/api/cli/device/token",
        "/api/cli/workspaces",
        "/api/cli/tokens/ct_01J8",
        "/api/cli/datasets",
        "/api/cli/datasets/ds_1/complete",
        "/api/cli/datasets/ds_1/abort",
        "/api/cli/datasets/ds_1/logs",
        "/api/cli/environment-secrets",
        "/api/cli/environment-secrets/audit",
        "/api/cli/rollouts",
        "/api/cli/models/base",
        "/api/cli/models/lora",
        "/api/cli/models/m",
        "/api/cli/models/m/deploy",
        "/api/cli/models/m/undeploy",
        "/api/cli/eval-runs",
        "/api/cli/eval-runs/r/metrics",
        "/api/cli/eval-runs/r/stop",
        "/api/cli/eval-runs/r/samples/manifest",
        "/api/cli/eval-runs/r/samples/download-urls",
    ]


def test_the_route_that_is_ours_lies_beside_the_contracts() -> None:
    assert routes.model_download("m/1") == "/api/cli/models/m%2F1/download"
