from __future__ import annotations

import pytest

from tests.contract.conftest import (
    DownloadItem,
    EvalRunSubmit,
    Experiment,
    PlatformClient,
    PlatformError,
    RunSecrets,
    Wire,
    nulled,
)

RESULTS = """{"score": 0.5, "pass_rate": 0.25, "pass_threshold": 1.0, "graded": 8, "passed": 2, "failed": 1,
 "skipped": 0, "total_runs": 8, "sampled_rows": 4, "total_tokens": 900, "total_dataset_rows": 40,
 "resumed_count": 1, "reward_stats": {"mean": 0.5, "pass_at_k": {"1": 0.4, "2": 0.6}}}"""

ROW = f"""{{"id": "er_1", "name": "amber-otter-42", "status": "running", "created_at": "2026-11-03T08:12:44Z",
 "started_at": "2026-11-03T08:12:45Z", "completed_at": "2026-11-03T08:13:44Z", "creator_name": "Mara",
 "creator_email": "mara@fern.example", "platform_url": "https://p", "model": {{"id": "m", "name": "vendor/x"}},
 "dataset": {{"id": "ds_1", "name": "maze-walks", "file_name": "maze-walks"}},
 "rollout": {{"id": "ro_1", "name": "maze"}}, "results": {RESULTS}, "config": {{"n": 2}}}}"""

DETAIL = f"""{{"eval_run": {{"id": "er_1", "name": "amber-otter-42", "status": "failed",
   "created_at": "2026-11-03T08:12:44Z", "started_at": "2026-11-03T08:12:45Z",
   "completed_at": "2026-11-03T08:13:44Z", "creator_name": "Mara", "creator_email": "m@fern.example",
   "platform_url": "https://p", "error": "the model refused the key"}},
 "config": {{"model_path": "vendor/x", "n": 2, "engine": {{"max_parallel": 6}}}}, "results": {RESULTS},
 "dataset": {{"id": "ds_1", "name": "maze-walks"}}, "rollout": {{"id": "ro_1", "name": "maze"}},
 "entrypoint": "main.py", "branch": "exp-2", "commit_sha": "0f3a", "env_config": {{"LOG_LEVEL": "DEBUG"}},
 "resolved_secret_scopes": {{"OPENAI_API_KEY": "user"}}, "dataset_df_stats": {{"rows": 40}},
 "is_internal_user": true}}"""

METRICS = """{"status": "finished", "eval_run_id": "er_1",
 "overview": {"duration_ms": 60000, "total_samples": 8, "completed_samples": 8, "graded": 8, "passed": 2,
   "failed": 0, "skipped": 0, "pass_rate": 0.25, "pass_threshold": 1, "tokens_used": 900},
 "reward_stats": {"mean": 0.5, "median": 0.5, "std": 0.1, "min": 0, "max": 1},
 "pass_at_k": [{"k": 1, "value": 0.25}, {"k": 2, "value": 0.5}]}"""


def _run(**changes: object) -> EvalRunSubmit:
    experiment = Experiment(
        rollout="maze", entrypoint="main.py", model_path="vendor-a/policy-small", dataset="maze-walks"
    )
    return EvalRunSubmit(experiment_config=experiment, **changes)  # type: ignore[arg-type]


def test_a_submit_says_only_what_was_written(client: PlatformClient, wire: Wire) -> None:
    wire.answers(
        "POST",
        "/api/cli/eval-runs",
        '{"id": "er_1", "name": "amber-otter-42", "status": "pending", "created_at": "2026-11-03T08:12:44Z"}',
        status=201,
    )
    made = client.eval_runs.submit(_run())
    assert wire.sent == {
        "experiment_config": {
            "rollout": "maze",
            "entrypoint": "main.py",
            "model_path": "vendor-a/policy-small",
            "dataset": "maze-walks",
        }
    }
    assert (made.id, made.name, made.status, made.platform_url) == ("er_1", "amber-otter-42", "pending", None)


def test_a_submit_full(client: PlatformClient, wire: Wire) -> None:
    wire.answers(
        "POST",
        "/api/cli/eval-runs",
        '{"id": "e", "name": "n", "status": "pending", "created_at": "2026-11-03T08:12:44Z", "platform_url": null}',
    )
    client.eval_runs.submit(
        _run(
            evaluation_config={"n": 4, "pass_threshold": 0.8},
            advanced_config={"engine": {"max_parallel": 6}},
            env_config={"LOG_LEVEL": "DEBUG"},
            secrets=RunSecrets(required=["OPENAI_API_KEY", "SEARCH_KEY"], provided={"SEARCH_KEY": "v"}),
        )
    )
    assert {key: value for key, value in wire.sent.items() if key != "experiment_config"} == {
        "evaluation_config": {"n": 4, "pass_threshold": 0.8},
        "advanced_config": {"engine": {"max_parallel": 6}},
        "env_config": {"LOG_LEVEL": "DEBUG"},
        "secrets": {"required": ["OPENAI_API_KEY", "SEARCH_KEY"], "provided": {"SEARCH_KEY": "v"}},
    }


def test_a_submit_that_lacks_secrets_keeps_the_platforms_words(client: PlatformClient, wire: Wire) -> None:
    wire.answers(
        "POST",
        "/api/cli/eval-runs",
        '{"error": "Secret(s) not found: A, B", "code": "NOT_FOUND", "platform_url": "https://p/secrets"}',
        status=404,
    )
    with pytest.raises(PlatformError) as caught:
        client.eval_runs.submit(_run(secrets=RunSecrets(required=["A", "B"])))
    assert caught.value.message == "Secret(s) not found: A, B"
    assert caught.value.details["platform_url"] == "https://p/secrets"


def test_a_list_full(client: PlatformClient, wire: Wire) -> None:
    wire.answers(
        "GET",
        "/api/cli/eval-runs?limit=1&offset=0",
        f'{{"eval_runs": [{ROW}], "total_count": 3, "has_more": true, "next_offset": 1}}',
    )
    page = client.eval_runs.list(limit=1)
    (row,) = page.eval_runs
    assert (row.name, row.status, row.creator_email) == ("amber-otter-42", "running", "mara@fern.example")
    assert row.model is not None and row.dataset is not None and row.rollout is not None
    assert (row.model.name, row.dataset.name, row.rollout.name) == ("vendor/x", "maze-walks", "maze")
    assert row.results is not None and row.results.reward_stats is not None
    assert (row.results.score, row.results.total_runs, row.config) == (0.5, 8, {"n": 2})
    assert row.results.reward_stats["pass_at_k"] == {"1": 0.4, "2": 0.6}


@pytest.mark.parametrize(
    "row", ['{"id": "er_1"}', nulled(ROW), ROW.replace(RESULTS, nulled(RESULTS)).replace('"id": "m", ', "")]
)
def test_a_list_minimal_and_null(client: PlatformClient, wire: Wire, row: str) -> None:
    wire.answers("GET", "/api/cli/eval-runs?limit=50&offset=0", f'{{"eval_runs": [{row}]}}')
    (found,) = client.eval_runs.list().eval_runs
    assert found.id == "er_1"
    assert found.results is None or found.results.score is None


def test_a_detail_full(client: PlatformClient, wire: Wire) -> None:
    wire.answers("GET", "/api/cli/eval-runs/amber-otter-42", DETAIL)
    found = client.eval_runs.get("amber-otter-42")
    assert (found.eval_run.status, found.eval_run.error) == ("failed", "the model refused the key")
    assert found.config == {"model_path": "vendor/x", "n": 2, "engine": {"max_parallel": 6}}
    assert (found.entrypoint, found.branch, found.commit_sha) == ("main.py", "exp-2", "0f3a")
    assert found.env_config == {"LOG_LEVEL": "DEBUG"}
    assert found.resolved_secret_scopes == {"OPENAI_API_KEY": "user"}
    assert found.results is not None and found.results.resumed_count == 1


@pytest.mark.parametrize("reply", ['{"eval_run": {"id": "er_1"}}', nulled(DETAIL)])
def test_a_detail_minimal_and_null(client: PlatformClient, wire: Wire, reply: str) -> None:
    wire.answers("GET", "/api/cli/eval-runs/er_1", reply)
    found = client.eval_runs.get("er_1")
    assert (found.eval_run.id, found.eval_run.name, found.eval_run.status) == ("er_1", None, "")
    assert (found.config, found.results, found.branch, found.env_config) == (None, None, None, None)


@pytest.mark.parametrize("reply", ["{}", '{"eval_run": null}', '{"eval_run": {"id": null}}'])
def test_a_detail_without_its_run_is_none(client: PlatformClient, wire: Wire, reply: str) -> None:
    wire.answers("GET", "/api/cli/eval-runs/er_1", reply)
    with pytest.raises(PlatformError, match="eval_run"):
        client.eval_runs.get("er_1")


def test_metrics_full(client: PlatformClient, wire: Wire) -> None:
    wire.answers("GET", "/api/cli/eval-runs/er_1/metrics", METRICS)
    found = client.eval_runs.metrics("er_1")
    assert (found.status, found.overview.total_samples, found.overview.pass_rate) == ("finished", 8, 0.25)
    assert found.reward_stats == {"mean": 0.5, "median": 0.5, "std": 0.1, "min": 0, "max": 1}
    assert [(point.k, point.value) for point in found.pass_at_k] == [(1, 0.25), (2, 0.5)]


@pytest.mark.parametrize(
    "reply",
    [
        "{}",
        nulled(METRICS),
        '{"overview": {"pass_rate": null, "tokens_used": null}, "reward_stats": {"mean": null}}',
    ],
)
def test_metrics_minimal_and_null(client: PlatformClient, wire: Wire, reply: str) -> None:
    wire.answers("GET", "/api/cli/eval-runs/er_1/metrics", reply)
    found = client.eval_runs.metrics("er_1")
    assert (found.status, found.overview.graded, found.pass_at_k) == ("", None, [])


def test_logs_and_stop(client: PlatformClient, wire: Wire) -> None:
    wire.answers(
        "GET",
        "/api/cli/eval-runs/er_1/logs?limit=200&direction=older",
        '{"logs": [{"message": "ready"}], "next_cursor": null}',
    )
    assert client.eval_runs.logs("er_1", limit=200).logs[0].message == "ready"
    for reply in ("{}", '{"id": "er_1", "status": "stopped"}', '{"id": null, "status": null}'):
        wire.answers("POST", "/api/cli/eval-runs/er_1/stop", reply)
        client.eval_runs.stop("er_1")
        assert wire.sent == {}


def test_a_manifest_is_asked_for_by_types_and_rows(client: PlatformClient, wire: Wire) -> None:
    wire.answers(
        "GET",
        "/api/cli/eval-runs/er_1/samples/manifest?types=metrics%2Ctrajectories&rows=3%2C7%2C10-20",
        """{"files": [{"path": "metrics.json", "size": 0, "token": "t"}, {"path": "summary.jsonl", "size": 9,
            "token": null}], "totals": {"files": 2, "bytes": 9}}""",
    )
    found = client.eval_runs.manifest("er_1", types=["metrics", "trajectories"], rows="3,7,10-20")
    assert [(file.path, file.size, file.token) for file in found.files] == [
        ("metrics.json", 0, "t"),
        ("summary.jsonl", 9, None),
    ]
    assert found.totals == {"files": 2, "bytes": 9}


@pytest.mark.parametrize("size", ["1.0", "1.5", "true", '"1"', "-1", "null"])
def test_a_file_whose_size_is_no_count_of_bytes_is_refused(
    client: PlatformClient, wire: Wire, size: str
) -> None:
    wire.answers(
        "GET",
        "/api/cli/eval-runs/er_1/samples/manifest?types=metrics",
        f'{{"files": [{{"path": "metrics.json", "size": {size}}}]}}',
    )
    with pytest.raises(PlatformError, match="size"):
        client.eval_runs.manifest("er_1", types=["metrics"])


@pytest.mark.parametrize("items", ["items", "files", "urls"])
@pytest.mark.parametrize("url", ["url", "presignedUrl", "presigned_url"])
def test_download_urls_in_every_spelling(client: PlatformClient, wire: Wire, items: str, url: str) -> None:
    wire.answers(
        "POST",
        "/api/cli/eval-runs/er_1/samples/download-urls",
        f'{{"{items}": [{{"path": "metrics.json", "token": "t", "{url}": "https://b.example/canary"}}],'
        ' "expires_in": 900}',
    )
    asked = [DownloadItem(path="metrics.json", token="t"), DownloadItem(path="summary.jsonl")]
    found = client.eval_runs.download_urls("er_1", asked)
    assert wire.sent == {"items": [{"path": "metrics.json", "token": "t"}, {"path": "summary.jsonl"}]}
    assert [(item.path, item.token, item.url) for item in found.items] == [
        ("metrics.json", "t", "https://b.example/canary")
    ]
    assert "canary" not in repr(found) and found.expires_in == 900


@pytest.mark.parametrize("reply", ["{}", '{"items": null, "expires_in": null}'])
def test_no_download_urls(client: PlatformClient, wire: Wire, reply: str) -> None:
    wire.answers("POST", "/api/cli/eval-runs/er_1/samples/download-urls", reply)
    assert client.eval_runs.download_urls("er_1", [DownloadItem(path="x")]).items == []


SAMPLE = """{"row": 3, "attempt": 1, "status": "success", "source_row_index": 17, "row_digest": "0f3a", "reward": 0.5,
 "tokens": 900, "cost_usd": 0.002, "duration_ms": 1500.5, "model_latency_ms": 800.25}"""


def test_samples_are_read_page_by_page_with_and_without_what_may_be_absent(
    client: PlatformClient, wire: Wire
) -> None:
    path = "/api/cli/eval-runs/amber-otter-42/samples"
    sparse = '{"row": 4, "attempt": 0, "status": "failed"}'
    empty = nulled(SAMPLE, keep=("row", "attempt", "status"))
    wire.answers(
        "GET", f"{path}?limit=2", f'{{"samples": [{SAMPLE}, {sparse}, {empty}], "next_cursor": "4-0"}}'
    )
    page = client.eval_runs.samples("amber-otter-42", limit=2)
    full = page.samples[0]
    assert (full.row, full.attempt, full.source_row_index, full.row_digest) == (3, 1, 17, "0f3a")
    assert (full.reward, full.tokens, full.cost_usd) == (0.5, 900, 0.002)
    assert (full.duration_ms, full.model_latency_ms) == (1500.5, 800.25)
    assert [(each.reward, each.row_digest) for each in page.samples[1:]] == [(None, None)] * 2
    assert page.next_cursor == "4-0"
    wire.answers("GET", f"{path}?limit=2&cursor=4-0", '{"samples": []}')
    assert client.eval_runs.samples("amber-otter-42", limit=2, cursor="4-0").next_cursor is None
