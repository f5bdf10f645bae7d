"""Submission and control of evaluations and training runs, and downloads of samples."""

from __future__ import annotations

from typing import Any

import pytest

from osmosis_ai.api.client import PlatformClient
from osmosis_ai.api.http_errors import PlatformError
from osmosis_ai.api.models.eval_runs import DownloadItem, DownloadUrls, DownloadUrlsRequest
from osmosis_ai.api.models.runs import EvalRunSubmit, RunSecrets, TrainingRunSubmit
from osmosis_ai.config.sections import Experiment
from osmosis_ai.errors import NotFoundError
from osmosis_ai.services.runs.lifecycle import post_stop
from osmosis_ai.services.runs.submit import post_run
from tests.contract.conftest import Wire

EXPERIMENT = {
    "rollout": "maze",
    "entrypoint": "main.py",
    "model_path": "vendor-a/policy-small",
    "dataset": "maze-walks",
}
SUBMITTED = """{"id": "r_1", "name": "amber-otter-42", "status": "pending", "created_at": "2026-11-03T08:12:44Z",
 "platform_url": null}"""
SECRETS = {"required": ["OPENAI_API_KEY", "SEARCH_KEY"], "provided": {"SEARCH_KEY": "canary-value"}}
COMMON = {"advanced_config": {"engine": {"max_parallel": 6}}, "env_config": {"LOG_LEVEL": "DEBUG"}}
EVALUATION = {"evaluation_config": {"n": 4, "pass_threshold": 0.8}, **COMMON}
TRAINING = {
    "training_config": {"lr": 1e-6, "total_epochs": 2},
    "sampling_config": {"rollout_temperature": 1.0},
    "checkpoints_config": {"eval_interval": 10},
    **COMMON,
}


def submit(client: PlatformClient, runs: str, **sections: Any) -> Any:
    if "secrets" in sections:
        sections["secrets"] = RunSecrets(**sections["secrets"])
    submission = EvalRunSubmit if runs == "eval-runs" else TrainingRunSubmit
    body = submission(experiment_config=Experiment(**EXPERIMENT), **sections)  # type: ignore[arg-type]
    return post_run(client, "eval" if runs == "eval-runs" else "train", body)


@pytest.mark.parametrize(
    ("runs", "sections"),
    [
        ("eval-runs", {}),
        ("eval-runs", {**EVALUATION, "secrets": SECRETS}),
        ("training-runs", {}),
        ("training-runs", {**TRAINING, "secrets": SECRETS}),
    ],
)
def test_a_submission_holds_only_what_is_configured(
    client: PlatformClient, wire: Wire, runs: str, sections: dict[str, Any]
) -> None:
    wire.answers("POST", f"/api/cli/{runs}", SUBMITTED, status=201)
    made = submit(client, runs, **sections)
    assert wire.sent == {"experiment_config": EXPERIMENT, **sections}
    assert (made.id, made.name, made.status, made.platform_url) == ("r_1", "amber-otter-42", "pending", None)


def test_a_refused_submission_keeps_the_platforms_message(client: PlatformClient, wire: Wire) -> None:
    error = '{"error": "Secret(s) not found: A, B", "code": "NOT_FOUND", "platform_url": "https://p/secrets"}'
    wire.answers("POST", "/api/cli/eval-runs", error, status=404)
    with pytest.raises(NotFoundError) as caught:
        submit(client, "eval-runs", secrets={"required": ["A", "B"]})
    assert caught.value.message.startswith("Secret(s) not found: A, B\nStore them once:")
    assert caught.value.details["platform_url"] == "https://p/secrets"


def test_a_refused_submission_does_not_show_a_secret(client: PlatformClient, wire: Wire) -> None:
    wire.answers("POST", "/api/cli/training-runs", '{"error": "bad canary-value"}', status=400)
    with pytest.raises(PlatformError) as caught:
        submit(client, "training-runs", secrets=SECRETS)
    assert caught.value.message == "bad [REDACTED]"


def test_stopping_a_run(client: PlatformClient, wire: Wire) -> None:
    for reply in ("{}", '{"id": "er_1", "status": "stopped"}', '{"id": null, "status": null}'):
        wire.answers("POST", "/api/cli/eval-runs/er_1/stop", reply)
        post_stop(client, "eval", "er_1")
        assert wire.sent == {}
    wire.answers("POST", "/api/cli/training-runs/tr_8/stop", '{"id": "tr_8", "status": "stopping"}')
    assert post_stop(client, "train", "tr_8").status == "stopping"
    assert wire.sent == {}


def urls(client: PlatformClient, wanted: list[DownloadItem]) -> DownloadUrls:
    path = "/api/cli/eval-runs/er_1/samples/download-urls"
    return client.post(path, DownloadUrlsRequest(items=wanted), model=DownloadUrls)


@pytest.mark.parametrize("items", ["items", "files", "urls"])
@pytest.mark.parametrize("url", ["url", "presignedUrl", "presigned_url"])
def test_spellings_of_download_urls(client: PlatformClient, wire: Wire, items: str, url: str) -> None:
    wire.answers(
        "POST",
        "/api/cli/eval-runs/er_1/samples/download-urls",
        f'{{"{items}": [{{"path": "metrics.json", "token": "t", "{url}": "https://b.example/canary"}}],'
        ' "expires_in": 900}',
    )
    wanted = [DownloadItem(path="metrics.json", token="t"), DownloadItem(path="summary.jsonl")]
    found = urls(client, wanted)
    assert wire.sent == {"items": [{"path": "metrics.json", "token": "t"}, {"path": "summary.jsonl"}]}
    assert [(item.path, item.token, item.url) for item in found.items] == [
        ("metrics.json", "t", "https://b.example/canary")
    ]
    assert "canary" not in repr(found) and found.expires_in == 900


@pytest.mark.parametrize("reply", ["{}", '{"items": null, "expires_in": null}'])
def test_no_download_urls(client: PlatformClient, wire: Wire, reply: str) -> None:
    wire.answers("POST", "/api/cli/eval-runs/er_1/samples/download-urls", reply)
    assert urls(client, [DownloadItem(path="x")]).items == []
