"""Where everything lives: every path of the REST API, built in one place."""

from __future__ import annotations

from urllib.parse import quote

from osmosis_ai.errors import OsmosisError

PREFIX = "/api/cli"

VERIFY = f"{PREFIX}/verify"
DEVICE_AUTHORIZE = f"{PREFIX}/device/authorize"
DEVICE_TOKEN = f"{PREFIX}/device/token"
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
    """One token, to be revoked."""
    return f"{PREFIX}/tokens/{segment(token_id)}"


def dataset(name_or_id: str) -> str:
    """One dataset."""
    return f"{DATASETS}/{segment(name_or_id)}"


def dataset_complete(dataset_id: str) -> str:
    """The end of an upload."""
    return f"{dataset(dataset_id)}/complete"


def dataset_abort(dataset_id: str) -> str:
    """The giving up of an upload."""
    return f"{dataset(dataset_id)}/abort"


def dataset_download(name_or_id: str) -> str:
    """Where a dataset's bytes can be had."""
    return f"{dataset(name_or_id)}/download"


def dataset_logs(name_or_id: str) -> str:
    """What was said while a dataset was checked."""
    return f"{dataset(name_or_id)}/logs"


def rollout_server(name: str) -> str:
    """One agent that is served elsewhere; with what is below it and the list, a route of self-hosted platforms."""
    return f"{ROLLOUT_SERVERS}/{segment(name)}"


def rollout_server_probe(name: str) -> str:
    """The question how an agent that is served elsewhere does."""
    return f"{rollout_server(name)}/probe"


def model(name: str) -> str:
    """One LoRA model."""
    return f"{PREFIX}/models/{segment(name)}"


def model_deploy(name: str) -> str:
    """The start of serving a LoRA model."""
    return f"{model(name)}/deploy"


def model_undeploy(name: str) -> str:
    """The end of serving a LoRA model."""
    return f"{model(name)}/undeploy"


def model_download(name: str) -> str:
    """Where the files of a LoRA model can be had."""
    return f"{model(name)}/download"


def run_check(runs: str) -> str:
    """The question what a submit would be told; ours, the hosted service has no such route."""
    return f"{runs}/check"


def run(runs: str, name_or_id: str) -> str:
    """One run; ``runs`` is EVAL_RUNS, TRAINING_RUNS or BENCHMARK_RUNS, as everywhere here."""
    return f"{runs}/{segment(name_or_id)}"


def run_metrics(runs: str, name_or_id: str) -> str:
    """A run's numbers."""
    return f"{run(runs, name_or_id)}/metrics"


def run_logs(runs: str, name_or_id: str) -> str:
    """A run's log."""
    return f"{run(runs, name_or_id)}/logs"


def run_events(runs: str, name_or_id: str) -> str:
    """What is new in a run, told while it happens."""
    return f"{run(runs, name_or_id)}/events"


def run_stop(runs: str, name_or_id: str) -> str:
    """The order to stop a run."""
    return f"{run(runs, name_or_id)}/stop"


def training_run_resume(name_or_id: str) -> str:
    """The order to go on with a training run; a route of self-hosted platforms."""
    return f"{run(TRAINING_RUNS, name_or_id)}/resume"


def eval_run_retry(name_or_id: str) -> str:
    """The order to make a run's failed samples again; with what is below and beside it, a route of self-hosted platforms."""
    return f"{run(EVAL_RUNS, name_or_id)}/retry"


def eval_run_merged(name_or_id: str) -> str:
    """The numbers of a run and its retries together."""
    return f"{run(EVAL_RUNS, name_or_id)}/merged"


def eval_run_samples(name_or_id: str) -> str:
    """The results of a run's attempts, its retries taken into account."""
    return f"{run(EVAL_RUNS, name_or_id)}/samples"


def run_manifest(runs: str, name_or_id: str, files: str) -> str:
    """The list of a run's files; ``files`` is what the wire calls those of its kind."""
    return f"{run(runs, name_or_id)}/{files}/manifest"


def run_download_urls(runs: str, name_or_id: str, files: str) -> str:
    """Where a run's files can be had."""
    return f"{run(runs, name_or_id)}/{files}/download-urls"


def training_run_checkpoints(name_or_id: str) -> str:
    """The adapters that a training run has saved."""
    return f"{run(TRAINING_RUNS, name_or_id)}/checkpoints"


def training_run_validation(name_or_id: str) -> str:
    """The samples of a training run's newest validation; with what is below it, a route of self-hosted platforms."""
    return f"{run(TRAINING_RUNS, name_or_id)}/validation"


def training_run_conversation(name_or_id: str, row: int, attempt: int) -> str:
    """What was said in one of these samples."""
    return f"{training_run_validation(name_or_id)}/{row}/{attempt}"


def benchmark(key: str) -> str:
    """One benchmark, by its key, its name or its id."""
    return f"{BENCHMARKS}/{segment(key)}"


def dev_server(server_id: str) -> str:
    """One development rollout server."""
    return f"{DEV_SERVERS}/{segment(server_id)}"


def dev_server_logs(server_id: str) -> str:
    """What a development rollout server has said."""
    return f"{dev_server(server_id)}/logs"


def dev_server_log_stream(server_id: str) -> str:
    """What a development rollout server says, line by line as it comes."""
    return f"{dev_server_logs(server_id)}/stream"


def eval_import_uploads(session_id: str) -> str:
    """Where the files of an evaluation that ran elsewhere are to be sent."""
    return f"{EVAL_IMPORTS}/{segment(session_id)}/uploads"


def eval_import_complete(session_id: str) -> str:
    """The end of the upload of one of its files."""
    return f"{eval_import_uploads(session_id)}/complete"


def eval_import_finalize(session_id: str) -> str:
    """The order to make a run of it."""
    return f"{EVAL_IMPORTS}/{segment(session_id)}/finalize"
