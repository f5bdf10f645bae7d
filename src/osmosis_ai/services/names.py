"""Names of runs, datasets, models and remote agents, for suggestions and shell completion."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal
from urllib.parse import unquote

if TYPE_CHECKING:
    from osmosis_ai.api.client import PlatformClient
    from osmosis_ai.api.models.base import Page

Kind = Literal["eval", "train", "dataset", "model", "benchmark", "benchmark_run", "rollout_server"]
LOOK_TIMEOUT_S = 5.0
_LISTED_BY: Mapping[Kind, str] = {
    "eval": "eval list",
    "train": "train list",
    "dataset": "dataset list",
    "model": "model list",
    "benchmark": "benchmark list",
    "benchmark_run": "benchmark runs list",
    "rollout_server": "rollout server list",
}
_LATEST, _SUGGESTED, _LIKENESS = 50, 3, 0.6


def names_of(client: PlatformClient, kind: Kind, *, timeout_s: float = LOOK_TIMEOUT_S) -> list[str]:
    """Return the names on the first page of a list, newest first.

    Names are only a convenience, so the request is not retried.

    Raises:
        PlatformError: the request failed.
    """
    path, model, items, key = _lists()[kind]
    page = client.request(
        "GET",
        path,
        model=model,
        params={"limit": _LATEST, "offset": 0},
        git="optional" if kind == "rollout_server" else "required",
        timeout_s=timeout_s,
    )
    found = (getattr(item, key) for item in getattr(page, items))
    return [name for name in found if name]


def suggestion(client: PlatformClient, path: str) -> str | None:
    """Return a hint after a call that found nothing: similar names, or the command that lists them.

    Args:
        path: the path of the failed call.
    """
    from difflib import get_close_matches

    from osmosis_ai.errors import OsmosisError

    asked = _asked(path)
    if asked is None:
        return None
    kind, name = asked
    try:
        near = get_close_matches(name, names_of(client, kind), n=_SUGGESTED, cutoff=_LIKENESS)
    except OsmosisError:
        return None
    return (
        f"did you mean {' or '.join(near)}?" if near else f"see what there is: `osmosis {_LISTED_BY[kind]}`"
    )


def _asked(path: str) -> tuple[Kind, str] | None:
    from osmosis_ai.api import routes

    owners: Mapping[str, Kind] = {
        routes.EVAL_RUNS: "eval",
        routes.TRAINING_RUNS: "train",
        routes.DATASETS: "dataset",
        routes.LORA_MODELS.rpartition("/")[0]: "model",
        routes.BENCHMARKS: "benchmark",
        routes.BENCHMARK_RUNS: "benchmark_run",
        routes.ROLLOUT_SERVERS: "rollout_server",
    }
    for prefix, kind in owners.items():
        if path == routes.run_check(prefix):
            return None  # the missing object is one that the config names
        if path.startswith(f"{prefix}/"):
            return kind, unquote(path[len(prefix) + 1 :].partition("/")[0])
    return None


def _lists() -> Mapping[Kind, tuple[str, type[Page], str, str]]:
    """Return for each kind: the path of its list, the page model, and the attributes of the items and of a name."""
    from osmosis_ai.api import routes
    from osmosis_ai.api.models.benchmarks import BenchmarkList, BenchmarkRunList
    from osmosis_ai.api.models.datasets import DatasetList
    from osmosis_ai.api.models.eval_runs import EvalRunList
    from osmosis_ai.api.models.models import LoraModelList
    from osmosis_ai.api.models.rollouts import RolloutServerList
    from osmosis_ai.api.models.training_runs import TrainingRunList

    return {
        "eval": (routes.EVAL_RUNS, EvalRunList, "eval_runs", "name"),
        "train": (routes.TRAINING_RUNS, TrainingRunList, "training_runs", "name"),
        "dataset": (routes.DATASETS, DatasetList, "datasets", "file_name"),
        "model": (routes.LORA_MODELS, LoraModelList, "models", "model_name"),
        "benchmark": (routes.BENCHMARKS, BenchmarkList, "benchmarks", "source_ref"),
        "benchmark_run": (routes.BENCHMARK_RUNS, BenchmarkRunList, "benchmark_runs", "name"),
        "rollout_server": (routes.ROLLOUT_SERVERS, RolloutServerList, "rollout_servers", "name"),
    }
