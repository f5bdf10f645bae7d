"""Every path of the REST API."""

from __future__ import annotations

from urllib.parse import quote

from osmosis_ai.errors import OsmosisError

PREFIX = "/api/cli"

VERIFY = f"{PREFIX}/verify"
DEVICE_AUTHORIZE = f"{PREFIX}/device/authorize"
DEVICE_TOKEN = f"{PREFIX}/device/token"
LOGIN = (VERIFY, DEVICE_AUTHORIZE, DEVICE_TOKEN)
WORKSPACES = f"{PREFIX}/workspaces"
DATASETS = f"{PREFIX}/datasets"
ENVIRONMENT_SECRETS = f"{PREFIX}/environment-secrets"
SECRET_AUDIT = f"{ENVIRONMENT_SECRETS}/audit"
ROLLOUTS = f"{PREFIX}/rollouts"
ROLLOUT_SERVERS = f"{PREFIX}/rollout-servers"
ROLLOUT_SERVER_REGISTER = f"{PREFIX}/rollout-server/register"
BASE_MODELS = f"{PREFIX}/models/base"
LORA_MODELS = f"{PREFIX}/models/lora"
EVAL_RUNS = f"{PREFIX}/eval-runs"
EVAL_IMPORTS = f"{EVAL_RUNS}/imports"
TRAINING_RUNS = f"{PREFIX}/training-runs"
BENCHMARKS = f"{PREFIX}/benchmarks"
BENCHMARK_RUNS = f"{PREFIX}/benchmark-runs"
DEV_SERVERS = f"{PREFIX}/dev-rollout-server"
QUICKSTART = f"{PREFIX}/quickstart"


def segment(value: str) -> str:
    """Return ``value`` as exactly one path segment."""
    if not value:
        raise OsmosisError("a name or id must not be empty.")
    if set(value) == {"."}:
        return value.replace(".", "%2E")
    try:
        return quote(value, safe="")
    except UnicodeEncodeError:
        raise OsmosisError("a name or id must be valid Unicode text.") from None


def token(token_id: str) -> str:
    return f"{PREFIX}/tokens/{segment(token_id)}"


def dataset(name_or_id: str) -> str:
    return f"{DATASETS}/{segment(name_or_id)}"


def dataset_complete(dataset_id: str) -> str:
    return f"{dataset(dataset_id)}/complete"


def dataset_abort(dataset_id: str) -> str:
    return f"{dataset(dataset_id)}/abort"


def dataset_download(name_or_id: str) -> str:
    return f"{dataset(name_or_id)}/download"


def dataset_logs(name_or_id: str) -> str:
    return f"{dataset(name_or_id)}/logs"


def rollout_server(name: str) -> str:
    """A remote agent. This route, its list and the ones below it exist only on self-hosted platforms."""
    return f"{ROLLOUT_SERVERS}/{segment(name)}"


def rollout_server_probe(name: str) -> str:
    return f"{rollout_server(name)}/probe"


def model(name: str) -> str:
    return f"{PREFIX}/models/{segment(name)}"


def model_deploy(name: str) -> str:
    return f"{model(name)}/deploy"


def model_undeploy(name: str) -> str:
    return f"{model(name)}/undeploy"


def model_download(name: str) -> str:
    return f"{model(name)}/download"


def run_check(runs: str) -> str:
    """A check before a submit; only on self-hosted platforms."""
    return f"{runs}/check"


def run(runs: str, name_or_id: str) -> str:
    """One run; in this module ``runs`` is EVAL_RUNS, TRAINING_RUNS or BENCHMARK_RUNS."""
    return f"{runs}/{segment(name_or_id)}"


def run_metrics(runs: str, name_or_id: str) -> str:
    return f"{run(runs, name_or_id)}/metrics"


def run_logs(runs: str, name_or_id: str) -> str:
    return f"{run(runs, name_or_id)}/logs"


def run_events(runs: str, name_or_id: str) -> str:
    return f"{run(runs, name_or_id)}/events"


def run_stop(runs: str, name_or_id: str) -> str:
    return f"{run(runs, name_or_id)}/stop"


def training_run_resume(name_or_id: str) -> str:
    """Only on self-hosted platforms."""
    return f"{run(TRAINING_RUNS, name_or_id)}/resume"


def eval_run_retry(name_or_id: str) -> str:
    """Only on self-hosted platforms."""
    return f"{run(EVAL_RUNS, name_or_id)}/retry"


def eval_run_samples(name_or_id: str) -> str:
    """The results of a run's attempts."""
    return f"{run(EVAL_RUNS, name_or_id)}/samples"


def run_manifest(runs: str, name_or_id: str, files: str) -> str:
    """The list of a run's files; ``files`` is the wire's word for files of this kind."""
    return f"{run(runs, name_or_id)}/{files}/manifest"


def run_download_urls(runs: str, name_or_id: str, files: str) -> str:
    return f"{run(runs, name_or_id)}/{files}/download-urls"


def training_run_checkpoints(name_or_id: str) -> str:
    return f"{run(TRAINING_RUNS, name_or_id)}/checkpoints"


def training_run_validation(name_or_id: str) -> str:
    """The attempts of a training run's newest validation; only on self-hosted platforms, like the conversations."""
    return f"{run(TRAINING_RUNS, name_or_id)}/validation"


def training_run_conversation(name_or_id: str, row: int, attempt: int) -> str:
    return f"{training_run_validation(name_or_id)}/{row}/{attempt}"


def benchmark(key: str) -> str:
    """One benchmark, by key, name or id."""
    return f"{BENCHMARKS}/{segment(key)}"


def dev_server(server_id: str) -> str:
    return f"{DEV_SERVERS}/{segment(server_id)}"


def dev_server_logs(server_id: str) -> str:
    return f"{dev_server(server_id)}/logs"


def dev_server_log_stream(server_id: str) -> str:
    return f"{dev_server_logs(server_id)}/stream"


def eval_import_uploads(session_id: str) -> str:
    """Upload URLs for the files of a local evaluation."""
    return f"{EVAL_IMPORTS}/{segment(session_id)}/uploads"


def eval_import_complete(session_id: str) -> str:
    return f"{eval_import_uploads(session_id)}/complete"


def eval_import_finalize(session_id: str) -> str:
    return f"{EVAL_IMPORTS}/{segment(session_id)}/finalize"
