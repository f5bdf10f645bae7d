"""Replies of the platform that the client reads: complete, with the least they may hold, and invalid."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any

import pytest

from osmosis_ai.api.client import PlatformClient
from osmosis_ai.api.http_errors import PlatformError
from osmosis_ai.api.models.auth import WorkspaceList
from osmosis_ai.api.models.datasets import DatasetDownload, DatasetList
from osmosis_ai.api.models.eval_runs import EvalMetrics, EvalRunList, EvalSamplePage, SampleManifest
from osmosis_ai.api.models.models import BaseModelList, LoraModelList
from osmosis_ai.api.models.rollouts import RolloutList
from osmosis_ai.api.models.secrets import SecretHandoutList, SecretList
from osmosis_ai.api.models.training_runs import (
    TrainingMetrics,
    TrainingRunList,
    ValidationConversation,
    ValidationPage,
)
from osmosis_ai.services.datasets import dataset_log, get_dataset
from osmosis_ai.services.models import get_lora_model
from osmosis_ai.services.runs.lifecycle import (
    get_evaluation,
    get_training,
    list_checkpoints,
    log_page,
    run_path,
)
from tests.contract.conftest import BASE, Wire, nulled

VERIFY = """{"valid": true, "user": {"id": "usr_5", "email": "mara@fern.example", "name": "Mara"},
 "expires_at": "2027-02-01T10:00:00.000Z", "token_id": "ct_01J8",
 "workspace": {"id": "ws_1", "name": "fern-lab", "role": "admin"},
 "organization": {"id": "ws_1", "name": "fern-lab", "role": "owner"}}"""
WORKSPACES = """{"workspaces": [
 {"id": "ws_1", "name": "fern-lab", "role": "owner", "has_billing_setup": true,
  "connected_repo": {"id": "r_1", "repo_full_name": "fern/maze"}},
 {"id": "ws_2", "name": "moss", "connected_repo": null}]}"""
DATASET = """{"id": "ds_31", "file_name": "maze-walks", "file_size": 2048, "status": "uploaded",
 "file_format": "parquet", "original_file_format": "csv", "row_count": 120, "original_file_size": 4096,
 "data_preview": [{"user_prompt": "go", "ground_truth": "left"}], "creator_name": "Mara",
 "created_at": "2026-11-03T08:12:44.000Z", "updated_at": "2026-11-03T08:12:59.250Z",
 "platform_url": "https://platform.osmosis.ai/fern-lab/datasets/ds_31", "is_internal_user": true}"""
LOGS = """{"logs": [{"timestamp": "2026-11-03T08:12:45.000Z", "level": "error", "step": "validate",
   "message": "row 3: no prompt", "details": {"row": 3}},
  {"timestamp": null, "level": null, "step": null, "message": null, "details": null}, {}],
 "next_cursor": "2026-11-03T08:12:45Z|8"}"""
SECRET = """{"id": "sec_1", "name": "OPENAI_API_KEY", "scope": "user", "created_at": "2026-11-03T08:12:44.000Z",
 "updated_at": "2026-11-04T08:12:44.000Z", "creator_name": "Mara", "updater_name": "Ned",
 "platform_url": "https://platform.osmosis.ai/fern-lab/secrets"}"""
SECRET_ACCESS = """{"id": "sho_1", "names": ["OPENAI_API_KEY"], "run_id": "run_1", "run_name": "amber-otter",
 "attempt": 2, "machine": "basement", "pool": "gpu", "handed_at": "2026-11-03T08:12:44.000Z"}"""
ROLLOUT = """{"id": "ro_1", "name": "maze", "description": "walks", "is_active": false,
 "last_synced_commit_sha": "0f3a", "last_synced_at": "2026-11-03T08:12:44.000Z", "repo_full_name": "fern/maze",
 "created_at": "2026-11-03T08:12:44.000Z"}"""
BASE_MODEL = """{"id": "bm_1", "model_name": "fern/base-32b", "base_model": "fern/base-32b", "creator_name": "Mara",
 "created_at": "2026-11-03T08:12:44.000Z", "updated_at": "2026-11-03T08:12:44.000Z"}"""
LORA = """{"id": "lo_1", "model_name": "maze-lora", "base_model": "fern/base-32b", "training_run_name": "amber-otter",
 "checkpoint_step": 40, "reward": 0.75, "created_at": "2026-11-03T08:12:44.000Z", "deployment_status": "active",
 "deployed_at": "2026-11-03T08:12:44.000Z", "deployed_by": "Mara", "hf_upload_status": "done",
 "hf_url": "https://hf.example/x", "uploaded_by": "Ned", "inference_model": "fern/base-32b:maze-lora",
 "platform_url": "https://platform.osmosis.ai/fern-lab/models/lo_1", "is_internal_user": false}"""
RESULTS = """{"score": 0.5, "pass_rate": 0.25, "pass_threshold": 1.0, "graded": 8, "passed": 2, "failed": 1,
 "skipped": 0, "total_runs": 8, "sampled_rows": 4, "total_tokens": 900, "total_dataset_rows": 40,
 "resumed_count": 1, "reward_stats": {"mean": 0.5, "pass_at_k": {"1": 0.4, "2": 0.6}}}"""
RUN_TIMES = """"created_at": "2026-11-03T08:12:44.000Z", "started_at": "2026-11-03T08:12:45.000Z",
 "completed_at": "2026-11-03T08:13:44.000Z", "creator_name": "Mara", "creator_email": "mara@fern.example",
 "platform_url": "https://p\""""
EVAL_ROW = f"""{{"id": "er_1", "name": "amber-otter-42", "status": "running", {RUN_TIMES},
 "model": {{"id": "m", "name": "vendor/x"}}, "dataset": {{"id": "ds_1", "name": "maze-walks"}},
 "rollout": {{"id": "ro_1", "name": "maze"}}, "results": {RESULTS}, "config": {{"n": 2}}}}"""
EVAL_RUN = f"""{{"eval_run": {{"id": "er_1", "name": "amber-otter-42", "status": "failed", {RUN_TIMES},
   "error": "the model refused the key"}},
 "config": {{"model_path": "vendor/x", "n": 2, "engine": {{"max_parallel": 6}}}}, "results": {RESULTS},
 "dataset": {{"id": "ds_1", "name": "maze-walks"}}, "rollout": {{"id": "ro_1", "name": "maze"}},
 "entrypoint": "main.py", "branch": "exp-2", "commit_sha": "0f3a", "env_config": {{"LOG_LEVEL": "DEBUG"}},
 "resolved_secret_scopes": {{"OPENAI_API_KEY": "user"}}, "dataset_df_stats": {{"rows": 40}},
 "is_internal_user": true}}"""
EVAL_METRICS = """{"status": "finished", "eval_run_id": "er_1",
 "overview": {"duration_ms": 60000, "total_samples": 8, "completed_samples": 8, "graded": 8, "passed": 2,
   "failed": 0, "skipped": 0, "pass_rate": 0.25, "pass_threshold": 1, "tokens_used": 900},
 "reward_stats": {"mean": 0.5, "median": 0.5, "std": 0.1, "min": 0, "max": 1},
 "pass_at_k": [{"k": 1, "value": 0.25}, {"k": 2, "value": 0.5}]}"""
SAMPLE = """{"row": 3, "attempt": 1, "status": "success", "source_row_index": 17, "row_digest": "0f3a", "reward": 0.5,
 "tokens": 900, "cost_usd": 0.002, "duration_ms": 1500.5, "model_latency_ms": 800.25}"""
MANIFEST = """{"files": [{"path": "metrics.json", "size": 0, "token": "t"}, {"path": "summary.jsonl", "size": 9,
   "token": null}], "totals": {"files": 2, "bytes": 9}}"""
TRAINING_FIELDS = f""""id": "tr_8", "name": "copper-finch", "status": "running", {RUN_TIMES}, "current_step": 12,
 "total_steps": 80, "reward": 0.31"""
TRAINING_ROW = f"""{{{TRAINING_FIELDS}, "model": {{"id": "bm_1", "model_name": "fern/base-32b"}},
 "dataset": {{"id": "ds_31", "file_name": "maze-walks"}}, "rollout": {{"id": "ro_2", "name": "maze"}}}}"""
TRAINING_RUN = f"""{{"training_run": {{{TRAINING_FIELDS}, "examples_processed_count": 3072, "notes": "second try"}},
 "model": {{"id": "bm_1", "name": "fern/base-32b"}}, "dataset": {{"id": "ds_31", "name": "maze-walks"}},
 "rollout": {{"id": "ro_2", "name": "maze"}}, "entrypoint": "main.py", "branch": "exp-2", "commit_sha": "4be1",
 "config": {{"training": {{"lr": 1e-06}}}}, "env_config": {{"LOG_LEVEL": "INFO"}},
 "resolved_secret_scopes": {{"SEARCH_KEY": "user"}}, "is_internal_user": true}}"""
TRAINING_METRICS = """{"status": "running", "training_run_id": "tr_8",
 "overview": {"duration_ms": 60000, "examples_processed_count": 3072, "latest_step": 12, "total_steps": 80,
   "metric_summaries": [{"key": "rollout/raw_reward", "title": "Training reward", "initial": 0.1,
     "latest": 0.31, "delta": 0.21, "min": 0.05, "max": 0.4}, {"key": "x", "title": "X"}]},
 "metrics": [{"metric_key": "rollout/raw_reward", "title": "Training reward", "data_points": [
     {"step": 1, "value": 0.1, "timestamp": 1790924590000}, {"step": 2, "value": 1, "timestamp": 1790924600000}]},
   {"metric_key": "x", "title": "X", "data_points": []}],
 "marks": [{"step": 4, "kind": "restart", "text": "resumed after step 4"}]}"""
CHECKPOINTS = """{"training_run_name": "copper-finch", "training_run_id": "tr_8", "checkpoints": [
 {"id": "ck_1", "checkpoint_name": "copper-finch-step-20", "checkpoint_step": 20, "status": "uploaded",
  "size": 20480, "created_at": "2026-10-02T08:00:00.000Z"}]}"""
VALIDATION = """{"step": 40, "total": 200, "pass_threshold": 0.5, "next_cursor": "40-1", "samples": [
 {"row": 3, "attempt": 1, "status": "success", "reward": 0.25, "notes": "Nearly.", "parts": {"format": 1}}]}"""


def page(key: str, *items: str, **more: Any) -> str:
    """Return a page of a list."""
    tail = {"total_count": 7, "has_more": True, "next_offset": 6, **more}
    return f'{{"{key}": [{", ".join(items)}], {json.dumps(tail)[1:]}'


@dataclass(frozen=True)
class Reply:
    """A reply and how it is requested.

    ``defaults`` holds attributes, as dotted paths, that the client finds in each of the ``minimal`` replies.
    """

    path: str
    call: Callable[[PlatformClient], Any]
    full: str
    minimal: tuple[str, ...] = ()
    defaults: dict[str, Any] = field(default_factory=dict)


EVAL, TRAINING = "/api/cli/eval-runs", "/api/cli/training-runs"
REPLIES = {
    "verify": Reply(
        "/api/cli/verify",
        lambda c: c.verify(),
        VERIFY,
        (
            '{"user": {"id": "u", "email": "e"}}',
            '{"user": {"id": "u", "email": "e", "name": null}, "workspace": null, "expires_at": null,'
            ' "token_id": null, "valid": null, "organization": null}',
        ),
        {"user.name": None, "workspace": None, "expires_at": None, "token_id": None},
    ),
    "workspaces": Reply(
        "/api/cli/workspaces",
        lambda c: c.get("/api/cli/workspaces", model=WorkspaceList, git="never"),
        WORKSPACES,
        (
            '{"workspaces": [{"id": "ws_3", "name": "reed"}]}',
            nulled(WORKSPACES, keep=("id", "name", "repo_full_name")),
        ),
        {"workspaces.0.role": None},
    ),
    "dataset": Reply(
        "/api/cli/datasets/maze-walks",
        lambda c: get_dataset(c, "maze-walks"),
        DATASET,
        ('{"id": "ds_31"}', nulled(DATASET)),
        {
            **dict.fromkeys(("file_name", "row_count", "data_preview", "created_at", "upload")),
            "file_size": 0,
            "status": "",
            "is_internal_user": False,
        },
    ),
    "datasets": Reply(
        "/api/cli/datasets?limit=2&offset=4",
        lambda c: c.pages("/api/cli/datasets", DatasetList)(2, 4),
        page("datasets", DATASET, '{"id": "ds_32"}'),
        ('{"datasets": []}', page("datasets", total_count=None, has_more=None, next_offset=None)),
        {"items": [], "total_count": 0, "has_more": False, "next_offset": None},
    ),
    "dataset logs": Reply(
        "/api/cli/datasets/maze/logs?limit=20&direction=older&cursor=2026-11-03T08%3A12%3A44Z%7C7",
        lambda c: dataset_log(c, "maze")(20, "2026-11-03T08:12:44Z|7"),
        LOGS,
        ("{}", '{"logs": null, "next_cursor": null}'),
        {"logs": [], "next_cursor": None},
    ),
    "secrets": Reply(
        "/api/cli/environment-secrets?limit=50&offset=0&scope=user",
        lambda c: c.pages("/api/cli/environment-secrets", SecretList, scope="user")(50, 0),
        page("environment_secrets", SECRET, platform_url="https://p"),
    ),
    "secret accesses": Reply(
        "/api/cli/environment-secrets/audit?limit=20&offset=40",
        lambda c: c.pages("/api/cli/environment-secrets/audit", SecretHandoutList)(20, 40),
        page("handouts", SECRET_ACCESS),
        (
            page("handouts", '{"id": "sho_1", "names": ["OPENAI_API_KEY"], "run_id": "run_1"}'),
            page("handouts", nulled(SECRET_ACCESS, keep=("id", "names", "run_id"))),
        ),
        {
            "items.0.names": ["OPENAI_API_KEY"],
            **dict.fromkeys(f"items.0.{name}" for name in ("run_name", "attempt", "machine", "pool")),
        },
    ),
    "rollouts": Reply(
        "/api/cli/rollouts?limit=50&offset=0&branch=exp%2F2",
        lambda c: c.pages("/api/cli/rollouts", RolloutList, branch="exp/2")(50, 0),
        page("rollouts", ROLLOUT),
        ('{"rollouts": [{"id": "ro_1"}]}', page("rollouts", nulled(ROLLOUT))),
        {"items.0.name": None, "items.0.is_active": True, "items.0.last_synced_at": None},
    ),
    "base models": Reply(
        "/api/cli/models/base?limit=50&offset=0",
        lambda c: c.pages("/api/cli/models/base", BaseModelList)(50, 0),
        page("models", BASE_MODEL),
        ('{"models": [{"id": "bm_1"}]}', page("models", nulled(BASE_MODEL))),
        {"items.0.id": "bm_1", "items.0.model_name": None},
    ),
    "LoRA models": Reply(
        "/api/cli/models/lora?limit=50&offset=0",
        lambda c: c.pages("/api/cli/models/lora", LoraModelList)(50, 0),
        page("models", LORA, active_deployments=1, max_active_deployments=3),
    ),
    "LoRA model": Reply(
        "/api/cli/models/a%2Fb",
        lambda c: get_lora_model(c, "a/b"),
        LORA,
        ('{"id": "lo_1"}', nulled(LORA)),
        {"inference_model": None, "reward": None, "is_internal_user": False},
    ),
    "evaluations": Reply(
        f"{EVAL}?limit=1&offset=0",
        lambda c: c.get(f"{EVAL}?limit=1&offset=0", model=EvalRunList),
        page("eval_runs", EVAL_ROW),
        ('{"eval_runs": [{"id": "er_1"}]}', page("eval_runs", nulled(EVAL_ROW))),
        {"items.0.id": "er_1", "items.0.results": None},
    ),
    "evaluations without results": Reply(
        f"{EVAL}?limit=50&offset=0",
        lambda c: c.get(f"{EVAL}?limit=50&offset=0", model=EvalRunList),
        page("eval_runs", EVAL_ROW.replace(RESULTS, nulled(RESULTS)).replace('"id": "m", ', "")),
    ),
    "evaluation": Reply(
        f"{EVAL}/amber-otter-42",
        lambda c: get_evaluation(c, "amber-otter-42"),
        EVAL_RUN,
        ('{"eval_run": {"id": "er_1"}}', nulled(EVAL_RUN)),
        {
            "eval_run.status": "",
            **dict.fromkeys(("eval_run.name", "config", "results", "branch", "env_config")),
        },
    ),
    "evaluation metrics": Reply(
        f"{EVAL}/er_1/metrics",
        lambda c: c.get(f"{EVAL}/er_1/metrics", model=EvalMetrics),
        EVAL_METRICS,
        (
            "{}",
            nulled(EVAL_METRICS),
            '{"overview": {"pass_rate": null, "tokens_used": null}, "reward_stats": {"mean": null}}',
        ),
        {"status": "", "overview.graded": None, "pass_at_k": []},
    ),
    "samples": Reply(
        f"{EVAL}/amber-otter-42/samples?limit=2&cursor=4-0",
        lambda c: c.get(f"{EVAL}/amber-otter-42/samples?limit=2&cursor=4-0", model=EvalSamplePage),
        f'{{"samples": [{SAMPLE}], "next_cursor": "4-0"}}',
        (
            '{"samples": [{"row": 4, "attempt": 0, "status": "failed"}]}',
            f'{{"samples": [{nulled(SAMPLE, keep=("row", "attempt", "status"))}], "next_cursor": null}}',
        ),
        {"samples.0.reward": None, "samples.0.row_digest": None, "next_cursor": None},
    ),
    "manifest": Reply(
        f"{EVAL}/er_1/samples/manifest?types=metrics%2Ctrajectories&rows=3%2C7%2C10-20",
        lambda c: c.get(
            f"{EVAL}/er_1/samples/manifest?types=metrics%2Ctrajectories&rows=3%2C7%2C10-20",
            model=SampleManifest,
        ),
        MANIFEST,
    ),
    "training runs": Reply(
        f"{TRAINING}?limit=2&offset=4",
        lambda c: c.get(f"{TRAINING}?limit=2&offset=4", model=TrainingRunList),
        page("training_runs", TRAINING_ROW),
        (
            '{"training_runs": [{"id": "tr_8"}]}',
            page("training_runs", nulled(TRAINING_ROW)),
            *(
                f'{{"training_runs": [{{"id": "a", "current_step": {odd}, "total_steps": {odd}, "reward": {odd}}}]}}'
                for odd in ("NaN", "Infinity", '"12"', "true", "[]")
            ),
        ),
        {
            "items.0.status": "",
            **dict.fromkeys(f"items.0.{name}" for name in ("name", "reward", "current_step")),
            "items.0.total_steps": None,
        },
    ),
    "training run": Reply(
        f"{TRAINING}/copper%2Ffinch",
        lambda c: get_training(c, "copper/finch"),
        TRAINING_RUN,
        ('{"training_run": {"id": "tr_8", "status": "x"}}', nulled(TRAINING_RUN)),
        {"training_run.id": "tr_8", "config": None, "is_internal_user": False},
    ),
    "training metrics": Reply(
        f"{TRAINING}/tr_8/metrics",
        lambda c: c.get(f"{TRAINING}/tr_8/metrics", model=TrainingMetrics),
        TRAINING_METRICS,
        (
            "{}",
            '{"status": null, "overview": null, "metrics": null}',
            '{"overview": {"metric_summaries": null}}',
            nulled(TRAINING_METRICS),
        ),
        {"status": "", "metrics": [], "marks": [], "overview.metric_summaries": []},
    ),
    "checkpoints": Reply(
        f"{TRAINING}/tr_8/checkpoints",
        lambda c: list_checkpoints(c, "tr_8"),
        CHECKPOINTS,
        (
            '{"checkpoints": [{"id": "ck_1"}]}',
            nulled(CHECKPOINTS),
            *(
                f'{{"checkpoints": [{{"id": "ck_1", "size": {size}}}]}}'
                for size in ('"large"', "NaN", "9" * 400)
            ),
        ),
        dict.fromkeys(f"checkpoints.0.{name}" for name in ("checkpoint_name", "checkpoint_step", "size")),
    ),
    "no checkpoints": Reply(
        f"{TRAINING}/tr_8/checkpoints",
        lambda c: list_checkpoints(c, "tr_8"),
        '{"checkpoints": []}',
        ("{}",),
        {"checkpoints": []},
    ),
    "training logs": Reply(
        f"{TRAINING}/tr_8/logs?limit=5&direction=older&cursor=c%7C1",
        lambda c: log_page(c, "train", "tr_8", limit=5, cursor="c|1")[0],
        LOGS,
    ),
    "evaluation logs": Reply(
        f"{EVAL}/er_1/logs?limit=50&direction=older",
        lambda c: log_page(c, "eval", "er_1", limit=50, cursor=None)[0],
        LOGS,
    ),
    "validation": Reply(
        f"{TRAINING}/keen%2Fowl/validation?cursor=40-0",
        lambda c: c.get(run_path("train", "keen/owl", "/validation?cursor=40-0"), model=ValidationPage),
        VALIDATION,
        ("{}", nulled(VALIDATION)),
        {"step": None, "total": None, "samples": [], "next_cursor": None},
    ),
    "validation conversation": Reply(
        f"{TRAINING}/owl/validation/3/1",
        lambda c: c.get(f"{TRAINING}/owl/validation/3/1", model=ValidationConversation),
        '{"text": "{}", "size": 2, "missing": "x"}',
        ("{}", '{"text": null, "size": null, "missing": null}'),
        {"text": None, "size": 0, "missing": None},
    ),
}


@pytest.mark.parametrize("name", REPLIES)
def test_every_field_of_a_reply_is_read(client: PlatformClient, wire: Wire, name: str) -> None:
    reply = REPLIES[name]
    wire.answers("GET", reply.path, reply.full[:-1] + ', "unknown": {"x": [1]}}')
    found = reply.call(client)
    assert found.model_dump(mode="json", by_alias=True, exclude_unset=True) == json.loads(reply.full)


@pytest.mark.parametrize(
    ("name", "text"), [(name, text) for name, reply in REPLIES.items() for text in reply.minimal]
)
def test_missing_and_null_fields_have_defaults(
    client: PlatformClient, wire: Wire, name: str, text: str
) -> None:
    reply = REPLIES[name]
    wire.answers("GET", reply.path, text)
    found = reply.call(client)
    assert {path: lookup(found, path) for path in reply.defaults} == reply.defaults


def lookup(found: Any, path: str) -> Any:
    for part in path.split("."):
        found = found[int(part)] if part.isdigit() else getattr(found, part)
    return found


# Key of a list -> path, call. Some keys have several lists.
LISTS: list[tuple[str, str, Callable[[PlatformClient], Any]]] = [
    (
        "datasets",
        "/api/cli/datasets?limit=50&offset=0",
        lambda c: c.pages("/api/cli/datasets", DatasetList)(50, 0),
    ),
    (
        "environment_secrets",
        "/api/cli/environment-secrets?limit=50&offset=0&scope=all",
        lambda c: c.pages("/api/cli/environment-secrets", SecretList, scope="all")(50, 0),
    ),
    (
        "environment_secrets",
        "/api/cli/environment-secrets?limit=50&offset=0&scope=workspace",
        lambda c: c.pages("/api/cli/environment-secrets", SecretList, scope="workspace")(50, 0),
    ),
    (
        "handouts",
        "/api/cli/environment-secrets/audit?limit=50&offset=0",
        lambda c: c.pages("/api/cli/environment-secrets/audit", SecretHandoutList)(50, 0),
    ),
    (
        "rollouts",
        "/api/cli/rollouts?limit=50&offset=0",
        lambda c: c.pages("/api/cli/rollouts", RolloutList)(50, 0),
    ),
    (
        "models",
        "/api/cli/models/base?limit=50&offset=0",
        lambda c: c.pages("/api/cli/models/base", BaseModelList)(50, 0),
    ),
    (
        "models",
        "/api/cli/models/lora?limit=50&offset=0",
        lambda c: c.pages("/api/cli/models/lora", LoraModelList)(50, 0),
    ),
    (
        "workspaces",
        "/api/cli/workspaces",
        lambda c: c.get("/api/cli/workspaces", model=WorkspaceList, git="never"),
    ),
    (
        "eval_runs",
        f"{EVAL}?limit=50&offset=0",
        lambda c: c.get(f"{EVAL}?limit=50&offset=0", model=EvalRunList),
    ),
    (
        "training_runs",
        f"{TRAINING}?limit=50&offset=0",
        lambda c: c.get(f"{TRAINING}?limit=50&offset=0", model=TrainingRunList),
    ),
]


@pytest.mark.parametrize(("key", "path", "call"), LISTS)
def test_an_empty_list_differs_from_a_missing_one(
    client: PlatformClient, wire: Wire, key: str, path: str, call: Callable[[PlatformClient], Any]
) -> None:
    wire.answers("GET", path, f'{{"{key}": []}}')
    assert call(client).model_dump(by_alias=True)[key] == []
    for reply in (f'{{"{key}": null}}', '{"items": [], "total_count": 0}', "{}", ""):
        wire.answers("GET", path, reply)
        with pytest.raises(PlatformError, match=f"is invalid: `{key}`"):
            call(client)


@pytest.mark.parametrize(
    ("path", "call", "texts", "field"),
    [
        (
            "/api/cli/verify",
            lambda c: c.verify(),
            ["{}", '{"user": null}', '{"user": {"id": "u"}}', '{"user": "mara"}'],
            "`user",
        ),
        (
            f"{EVAL}/er_1",
            lambda c: get_evaluation(c, "er_1"),
            ["{}", '{"eval_run": null}', '{"eval_run": {"id": null}}'],
            "eval_run",
        ),
        (
            "/api/cli/datasets/maze/download",
            lambda c: c.get("/api/cli/datasets/maze/download", model=DatasetDownload),
            ["{}", '{"presigned_url": null}'],
            "presigned_url",
        ),
        (
            f"{TRAINING}/tr_8/metrics",
            lambda c: c.get(f"{TRAINING}/tr_8/metrics", model=TrainingMetrics),
            ['{"metrics": [{"title": "A"}]}'],
            "metric_key",
        ),
        (
            f"{EVAL}/er_1/samples/manifest?types=metrics",
            lambda c: c.get(f"{EVAL}/er_1/samples/manifest?types=metrics", model=SampleManifest),
            [
                f'{{"files": [{{"path": "metrics.json", "size": {size}}}]}}'
                for size in ("1.0", "1.5", "true", '"1"', "-1", "null")
            ],
            "size",
        ),
    ],
    ids=["verify", "evaluation", "download", "training metrics", "manifest"],
)
def test_an_invalid_reply_names_the_field(
    client: PlatformClient, wire: Wire, path: str, call: Any, texts: list[str], field: str
) -> None:
    for text in texts:
        wire.answers("GET", path, text)
        with pytest.raises(PlatformError, match=field):
            call(client)


@pytest.mark.parametrize("text", ["2027-02-01T10:00:00+01:00", "2027-02-01T09:00:00"])
def test_times_are_utc(client: PlatformClient, wire: Wire, text: str) -> None:
    wire.answers("GET", "/api/cli/verify", f'{{"user": {{"id": "u", "email": "e"}}, "expires_at": "{text}"}}')
    assert client.verify().expires_at == datetime(2027, 2, 1, 9, tzinfo=timezone.utc)


def test_the_git_identity_is_sent_where_it_matters(client: PlatformClient, wire: Wire) -> None:
    wire.answers("GET", "/api/cli/verify", VERIFY)
    client.verify()
    assert wire.headers["x-osmosis-git"] == "fern/maze"
    with PlatformClient(BASE, "osm_t") as outside:
        outside.verify()
    assert "x-osmosis-git" not in wire.headers
    wire.answers("GET", "/api/cli/workspaces", WORKSPACES)
    client.get("/api/cli/workspaces", model=WorkspaceList, git="never")
    assert "x-osmosis-git" not in wire.headers


def test_log_details_that_are_not_an_object_are_dropped(client: PlatformClient, wire: Wire) -> None:
    wire.answers(
        "GET",
        "/api/cli/datasets/maze/logs?limit=50&direction=older",
        '{"logs": [{"message": "a", "details": "text"}, {"message": "b", "details": [1]}]}',
    )
    found = dataset_log(client, "maze")(50, None)
    assert [(line.message, line.details) for line in found.logs] == [("a", None), ("b", None)]


def test_a_model_that_is_not_deployed_differs_from_one_that_cannot_be(
    client: PlatformClient, wire: Wire
) -> None:
    wire.answers(
        "GET",
        "/api/cli/models/lora?limit=50&offset=0",
        '{"models": [{"id": "a", "deployment_status": null}, {"id": "b"}]}',
    )
    found = client.pages("/api/cli/models/lora", LoraModelList)(50, 0)
    assert ["deployment_status" in model.model_fields_set for model in found.items] == [True, False]
    assert "active_deployments" not in found.model_fields_set


def test_points_and_marks_of_a_training_run_may_be_odd(client: PlatformClient, wire: Wire) -> None:
    wire.answers(
        "GET",
        f"{TRAINING}/tr_8/metrics",
        """{"metrics": [{"metric_key": "a", "title": "A", "data_points": [
              {"step": 1, "value": null, "timestamp": 1}, {"step": 2, "value": NaN, "timestamp": 2}]}],
            "marks": [{"kind": "warning"}, {"step": null, "kind": null}, {"step": "soon", "kind": "eclipse"}]}""",
    )
    found = client.get(f"{TRAINING}/tr_8/metrics", model=TrainingMetrics)
    assert [point.value for point in found.metrics[0].data_points] == [None, None]
    marks = [(mark.step, mark.kind, mark.text) for mark in found.marks]
    assert marks == [(None, "warning", ""), (None, "", ""), (None, "eclipse", "")]


@pytest.mark.parametrize(
    "reply",
    [
        '{"presigned_url": "https://b.example/x?sig=canary", "expires_in": 60, "file_name": "maze.csv"}',
        '{"presignedUrl": "https://b.example/x?sig=canary", "expiresIn": 60, "fileName": "maze.csv"}',
        '{"presigned_url": null, "presignedUrl": "https://b.example/x?sig=canary", "expires_in": 60,'
        ' "file_name": null, "download_file_name": "maze.csv"}',
        '{"presigned_url": "https://b.example/x?sig=canary", "expires_in": 60, "downloadFileName": "maze.csv"}',
    ],
)
def test_spellings_of_a_dataset_download(client: PlatformClient, wire: Wire, reply: str) -> None:
    wire.answers("GET", "/api/cli/datasets/maze/download", reply)
    found = client.get("/api/cli/datasets/maze/download", model=DatasetDownload)
    assert found.presigned_url == "https://b.example/x?sig=canary"
    assert (found.expires_in, found.file_name) == (60, "maze.csv")
    assert "canary" not in repr(found)
