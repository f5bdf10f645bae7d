from __future__ import annotations

import pytest

from tests.contract.conftest import (
    Experiment,
    PlatformClient,
    PlatformError,
    RunSecrets,
    TrainingRunSubmit,
    Wire,
    nulled,
)

OWN = """"id": "tr_8", "name": "copper-finch", "status": "running", "created_at": "2026-10-02T07:00:00Z",
 "started_at": "2026-10-02T07:03:10Z", "completed_at": "2026-10-02T09:03:10Z", "creator_name": "Mara",
 "creator_email": "mara@fern.example", "platform_url": "https://p", "current_step": 12, "total_steps": 80,
 "reward": 0.31"""

ROW = f"""{{{OWN}, "model": {{"id": "bm_1", "model_name": "fern/base-32b"}},
 "dataset": {{"id": "ds_31", "file_name": "maze-walks"}}, "rollout": {{"id": "ro_2", "name": "maze"}}}}"""

DETAIL = f"""{{"training_run": {{{OWN}, "examples_processed_count": 3072, "notes": "second try"}},
 "model": {{"id": "bm_1", "name": "fern/base-32b"}}, "dataset": {{"id": "ds_31", "name": "maze-walks"}},
 "rollout": {{"id": "ro_2", "name": "maze"}}, "entrypoint": "main.py", "branch": "exp-2", "commit_sha": "4be1",
 "config": {{"training": {{"lr": 1e-06}}}}, "env_config": {{"LOG_LEVEL": "INFO"}},
 "resolved_secret_scopes": {{"SEARCH_KEY": "user"}}, "is_internal_user": true}}"""

METRICS = """{"status": "running", "training_run_id": "tr_8",
 "overview": {"duration_ms": 60000, "examples_processed_count": 3072, "latest_step": 12, "total_steps": 80,
   "metric_summaries": [{"key": "rollout/raw_reward", "title": "Training reward", "initial": 0.1,
     "latest": 0.31, "delta": 0.21, "min": 0.05, "max": 0.4}, {"key": "x", "title": "X"}]},
 "metrics": [{"metric_key": "rollout/raw_reward", "title": "Training reward", "data_points": [
     {"step": 1, "value": 0.1, "timestamp": 1790924590000}, {"step": 2, "value": 1, "timestamp": 1790924600000}]},
   {"metric_key": "x", "title": "X", "data_points": []}]}"""

CHECKPOINTS = """{"training_run_name": "copper-finch", "training_run_id": "tr_8", "checkpoints": [
 {"id": "ck_1", "checkpoint_name": "copper-finch-step-20", "checkpoint_step": 20, "status": "uploaded",
  "created_at": "2026-10-02T08:00:00Z"}]}"""


def _run(**changes: object) -> TrainingRunSubmit:
    experiment = Experiment(
        rollout="maze", entrypoint="main.py", model_path="fern/base-32b", dataset="maze-walks"
    )
    return TrainingRunSubmit(experiment_config=experiment, **changes)  # type: ignore[arg-type]


def test_a_submit_says_only_what_was_written(client: PlatformClient, wire: Wire) -> None:
    wire.answers(
        "POST",
        "/api/cli/training-runs",
        '{"id": "tr_8", "name": "copper-finch", "status": "pending", "created_at": "2026-10-02T07:00:00Z"}',
        status=201,
    )
    made = client.training_runs.submit(_run())
    assert wire.sent == {
        "experiment_config": {
            "rollout": "maze",
            "entrypoint": "main.py",
            "model_path": "fern/base-32b",
            "dataset": "maze-walks",
        }
    }
    assert (made.id, made.name, made.status, made.platform_url) == ("tr_8", "copper-finch", "pending", None)


def test_a_submit_full(client: PlatformClient, wire: Wire) -> None:
    wire.answers(
        "POST",
        "/api/cli/training-runs",
        '{"id": "t", "name": "n", "status": "pending", "created_at": "2026-10-02T07:00:00Z", "platform_url": null}',
    )
    client.training_runs.submit(
        _run(
            training_config={"lr": 1e-6, "total_epochs": 2},
            sampling_config={"rollout_temperature": 1.0},
            checkpoints_config={"eval_interval": 10},
            advanced_config={"lora_rank": 32},
            env_config={"LOG_LEVEL": "DEBUG"},
            secrets=RunSecrets(required=["A"], provided={"A": "canary-value"}),
        )
    )
    assert {key: value for key, value in wire.sent.items() if key != "experiment_config"} == {
        "training_config": {"lr": 1e-6, "total_epochs": 2},
        "sampling_config": {"rollout_temperature": 1.0},
        "checkpoints_config": {"eval_interval": 10},
        "advanced_config": {"lora_rank": 32},
        "env_config": {"LOG_LEVEL": "DEBUG"},
        "secrets": {"required": ["A"], "provided": {"A": "canary-value"}},
    }


def test_a_refused_submit_is_not_repeated_and_shows_no_value(client: PlatformClient, wire: Wire) -> None:
    wire.answers("POST", "/api/cli/training-runs", '{"error": "bad canary-value"}', status=400)
    with pytest.raises(PlatformError) as caught:
        client.training_runs.submit(_run(secrets=RunSecrets(required=["A"], provided={"A": "canary-value"})))
    assert caught.value.message == "bad [REDACTED]"


def test_list_rows_full(client: PlatformClient, wire: Wire) -> None:
    wire.answers(
        "GET",
        "/api/cli/training-runs?limit=50&offset=0",
        f'{{"training_runs": [{ROW}], "total_count": 9, "has_more": true, "next_offset": 1}}',
    )
    page = client.training_runs.list()
    (row,) = page.training_runs
    assert row.model and row.dataset and row.rollout
    assert (row.model.model_name, row.dataset.file_name, row.rollout.name) == (
        "fern/base-32b",
        "maze-walks",
        "maze",
    )
    assert (row.current_step, row.total_steps, row.reward, page.next_offset) == (12, 80, 0.31, 1)


@pytest.mark.parametrize("row", ['{"id": "tr_8"}', nulled(ROW)])
def test_list_rows_minimal_and_null(client: PlatformClient, wire: Wire, row: str) -> None:
    wire.answers("GET", "/api/cli/training-runs?limit=2&offset=4", f'{{"training_runs": [{row}]}}')
    (found,) = client.training_runs.list(limit=2, offset=4).training_runs
    assert (found.id, found.name, found.status, found.reward, found.current_step) == (
        "tr_8",
        None,
        "",
        None,
        None,
    )


@pytest.mark.parametrize("odd", ["NaN", "Infinity", '"12"', "true", "[]"])
def test_numbers_that_are_none_are_ignored(client: PlatformClient, wire: Wire, odd: str) -> None:
    wire.answers(
        "GET",
        "/api/cli/training-runs?limit=50&offset=0",
        f'{{"training_runs": [{{"id": "a", "current_step": {odd}, "total_steps": {odd}, "reward": {odd}}}]}}',
    )
    (found,) = client.training_runs.list().training_runs
    assert (found.current_step, found.total_steps, found.reward) == (None, None, None)


def test_a_detail_full(client: PlatformClient, wire: Wire) -> None:
    wire.answers("GET", "/api/cli/training-runs/copper%2Ffinch", DETAIL)
    found = client.training_runs.get("copper/finch")
    assert found.model and found.dataset and found.rollout
    assert (found.model.name, found.dataset.name, found.rollout.name) == (
        "fern/base-32b",
        "maze-walks",
        "maze",
    )
    run = found.training_run
    assert (run.status, run.examples_processed_count, run.notes) == ("running", 3072, "second try")
    assert (found.config, found.branch, found.commit_sha) == ({"training": {"lr": 1e-6}}, "exp-2", "4be1")
    assert (found.env_config, found.resolved_secret_scopes) == ({"LOG_LEVEL": "INFO"}, {"SEARCH_KEY": "user"})
    assert (found.entrypoint, found.is_internal_user) == ("main.py", True)


@pytest.mark.parametrize("detail", ['{"training_run": {"id": "tr_8", "status": "x"}}', nulled(DETAIL)])
def test_a_detail_minimal_and_null(client: PlatformClient, wire: Wire, detail: str) -> None:
    wire.answers("GET", "/api/cli/training-runs/tr_8", detail)
    found = client.training_runs.get("tr_8")
    assert (found.training_run.id, found.config, found.is_internal_user) == ("tr_8", None, False)


def test_metrics_full(client: PlatformClient, wire: Wire) -> None:
    wire.answers("GET", "/api/cli/training-runs/tr_8/metrics", METRICS)
    found = client.training_runs.metrics("tr_8")
    assert (found.status, found.training_run_id) == ("running", "tr_8")
    overview = found.overview
    assert (overview.duration_ms, overview.latest_step, overview.total_steps) == (60000, 12, 80)
    reward, other = overview.metric_summaries
    assert (reward.key, reward.initial, reward.latest, reward.delta) == (
        "rollout/raw_reward",
        0.1,
        0.31,
        0.21,
    )
    assert (other.initial, other.max) == (None, None)
    series, empty = found.metrics
    assert [(point.step, point.value, point.timestamp) for point in series.data_points] == [
        (1, 0.1, 1790924590000),
        (2, 1.0, 1790924600000),
    ]
    assert empty.data_points == []


@pytest.mark.parametrize(
    "reply",
    [
        "{}",
        '{"status": null, "overview": null, "metrics": null}',
        '{"overview": {"metric_summaries": null}}',
        nulled(METRICS),
    ],
)
def test_metrics_minimal_and_null(client: PlatformClient, wire: Wire, reply: str) -> None:
    wire.answers("GET", "/api/cli/training-runs/tr_8/metrics", reply)
    found = client.training_runs.metrics("tr_8")
    assert (found.status, found.metrics, found.marks, found.overview.metric_summaries) == ("", [], [], [])


def test_the_marks_of_a_run_are_read_where_they_are_told(client: PlatformClient, wire: Wire) -> None:
    marks = (
        '[{"step": 4, "kind": "restart", "text": "went on after step 4"}, {"kind": "warning"},'
        ' {"step": null, "kind": null}, {"step": "soon", "kind": "eclipse", "why": 1}]'
    )
    wire.answers("GET", "/api/cli/training-runs/tr_8/metrics", f'{{"marks": {marks}}}')
    found = client.training_runs.metrics("tr_8").marks
    assert [(mark.step, mark.kind, mark.text) for mark in found] == [
        (4, "restart", "went on after step 4"),
        (None, "warning", ""),
        (None, "", ""),
        (None, "eclipse", ""),
    ]


def test_a_series_that_does_not_say_what_it_is_is_not_understood(client: PlatformClient, wire: Wire) -> None:
    wire.answers("GET", "/api/cli/training-runs/tr_8/metrics", '{"metrics": [{"title": "A"}]}')
    with pytest.raises(PlatformError):
        client.training_runs.metrics("tr_8")


def test_a_point_that_is_no_number_is_no_reason_to_fail(client: PlatformClient, wire: Wire) -> None:
    wire.answers(
        "GET",
        "/api/cli/training-runs/tr_8/metrics",
        '{"metrics": [{"metric_key": "a", "title": "A", "data_points": ['
        '{"step": 1, "value": null, "timestamp": 1}, {"step": 2, "value": NaN, "timestamp": 2}]}]}',
    )
    (series,) = client.training_runs.metrics("tr_8").metrics
    assert [point.value for point in series.data_points] == [None, None]


def test_checkpoints_full(client: PlatformClient, wire: Wire) -> None:
    wire.answers("GET", "/api/cli/training-runs/tr_8/checkpoints", CHECKPOINTS)
    found = client.training_runs.checkpoints("tr_8")
    (checkpoint,) = found.checkpoints
    assert (found.training_run_name, found.training_run_id) == ("copper-finch", "tr_8")
    assert (checkpoint.checkpoint_name, checkpoint.checkpoint_step, checkpoint.status) == (
        "copper-finch-step-20",
        20,
        "uploaded",
    )


@pytest.mark.parametrize("reply", ["{}", '{"checkpoints": [{"id": "ck_1"}]}', nulled(CHECKPOINTS)])
def test_checkpoints_minimal_and_null(client: PlatformClient, wire: Wire, reply: str) -> None:
    wire.answers("GET", "/api/cli/training-runs/tr_8/checkpoints", reply)
    found = client.training_runs.checkpoints("tr_8")
    assert all((one.checkpoint_name, one.checkpoint_step) == (None, None) for one in found.checkpoints)


@pytest.mark.parametrize(
    ("size", "read"), [("20480", 20480), ('"large"', None), ("NaN", None), ("9" * 400, None)]
)
def test_the_size_of_an_adapter_is_read_where_it_is_told(
    client: PlatformClient, wire: Wire, size: str, read: int | None
) -> None:
    reply = f'{{"checkpoints": [{{"id": "ck_1", "size": {size}}}]}}'
    wire.answers("GET", "/api/cli/training-runs/tr_8/checkpoints", reply)
    assert client.training_runs.checkpoints("tr_8").checkpoints[0].size == read


def test_logs_and_stop(client: PlatformClient, wire: Wire) -> None:
    wire.answers(
        "GET",
        "/api/cli/training-runs/tr_8/logs?limit=5&direction=older&cursor=c%7C1",
        '{"logs": [{"timestamp": "2026-10-02T08:00:00Z", "level": "info", "step": "12", "message": "m"}]}',
    )
    (entry,) = client.training_runs.logs("tr_8", limit=5, cursor="c|1").logs
    assert (entry.step, entry.message) == ("12", "m")
    wire.answers("POST", "/api/cli/training-runs/tr_8/stop", '{"id": "tr_8", "status": "stopping"}')
    assert client.training_runs.stop("tr_8").status == "stopping"
    assert wire.sent == {}


VALIDATION = """{"step": 40, "total": 200, "pass_threshold": 0.5, "next_cursor": "40-1", "samples": [
 {"row": 3, "attempt": 1, "status": "success", "reward": 0.25, "notes": "Nearly.", "parts": {"format": 1}}]}"""


def test_a_validation_full(client: PlatformClient, wire: Wire) -> None:
    wire.answers("GET", "/api/cli/training-runs/keen%2Fowl/validation?cursor=40-0", VALIDATION)
    page = client.training_runs.validation("keen/owl", cursor="40-0")
    (sample,) = page.samples
    assert (page.step, page.total, page.pass_threshold, page.next_cursor) == (40, 200, 0.5, "40-1")
    assert (sample.row, sample.attempt, sample.reward, sample.parts) == (3, 1, 0.25, {"format": 1})


@pytest.mark.parametrize("body", ["{}", nulled(VALIDATION)])
def test_a_validation_minimal_and_null(client: PlatformClient, wire: Wire, body: str) -> None:
    wire.answers("GET", "/api/cli/training-runs/owl/validation", body)
    page = client.training_runs.validation("owl")
    assert (page.step, page.total, page.samples, page.next_cursor) == (None, None, [], None)


@pytest.mark.parametrize(
    ("body", "known"),
    [
        ('{"text": "{}", "size": 2, "missing": "x"}', ("{}", 2, "x")),
        ("{}", (None, 0, None)),
        ('{"text": null, "size": null, "missing": null}', (None, 0, None)),
    ],
)
def test_a_conversation_of_a_validation(
    client: PlatformClient, wire: Wire, body: str, known: tuple[object, ...]
) -> None:
    wire.answers("GET", "/api/cli/training-runs/owl/validation/3/1", body)
    said = client.training_runs.validation_conversation("owl", 3, 1)
    assert (said.text, said.size, said.missing) == known
