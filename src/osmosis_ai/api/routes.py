"""Every path of the REST API."""

from __future__ import annotations

from urllib.parse import quote

from osmosis_ai.errors import OsmosisError

PREFIX = "/api/cli"

EVAL_RUNS = f"{PREFIX}/eval-runs"
EVAL_IMPORTS = f"{EVAL_RUNS}/imports"
TRAINING_RUNS = f"{PREFIX}/training-runs"
BENCHMARK_RUNS = f"{PREFIX}/benchmark-runs"


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


def eval_import_uploads(session_id: str) -> str:
    """Upload URLs for the files of a local evaluation."""
    return f"{EVAL_IMPORTS}/{segment(session_id)}/uploads"


def eval_import_complete(session_id: str) -> str:
    return f"{eval_import_uploads(session_id)}/complete"


def eval_import_finalize(session_id: str) -> str:
    return f"{EVAL_IMPORTS}/{segment(session_id)}/finalize"
