"""Names of runs, datasets, models and remote agents, for suggestions and shell completion."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from shlex import quote
from typing import Any, Literal, NamedTuple
from urllib.parse import unquote

from osmosis_ai.api.client import PlatformClient
from osmosis_ai.api.models.base import Page
from osmosis_ai.api.models.benchmarks import BenchmarkList, BenchmarkRunList
from osmosis_ai.api.models.datasets import DatasetList
from osmosis_ai.api.models.eval_runs import EvalRunList
from osmosis_ai.api.models.models import LoraModelList
from osmosis_ai.api.models.rollouts import RolloutServerList
from osmosis_ai.api.models.training_runs import TrainingRunList
from osmosis_ai.errors import OsmosisError
from osmosis_ai.files import can_be_path
from osmosis_ai.workspace.layout import find_workspace

Kind = Literal["eval", "train", "dataset", "model", "benchmark", "benchmark_run", "rollout_server"]
LOOK_TIMEOUT_S = 5.0
_LATEST, _SUGGESTED, _LIKENESS = 50, 3, 0.6


class _List(NamedTuple):
    """A list of the REST API: its path, the model of a page, and the key of an item's name."""

    path: str
    page: type[Page[Any]]
    name: str
    command: str
    """The command that shows the list."""


_LISTS: Mapping[Kind, _List] = {
    "eval": _List("/api/cli/eval-runs", EvalRunList, "name", "eval list"),
    "train": _List("/api/cli/training-runs", TrainingRunList, "name", "train list"),
    "dataset": _List("/api/cli/datasets", DatasetList, "file_name", "dataset list"),
    "model": _List("/api/cli/models/lora", LoraModelList, "model_name", "model list"),
    "benchmark": _List("/api/cli/benchmarks", BenchmarkList, "source_ref", "benchmark list"),
    "benchmark_run": _List("/api/cli/benchmark-runs", BenchmarkRunList, "name", "benchmark runs list"),
    "rollout_server": _List("/api/cli/rollout-servers", RolloutServerList, "name", "rollout server list"),
}


def names_of(client: PlatformClient, kind: Kind, *, timeout_s: float = LOOK_TIMEOUT_S) -> list[str]:
    """Return the names on the first page of a list, newest first. The request is not retried."""
    listed = _LISTS[kind]
    page = client.request(
        "GET",
        listed.path,
        model=listed.page,
        params={"limit": _LATEST, "offset": 0},
        git="optional" if kind == "rollout_server" else "required",
        timeout_s=timeout_s,
    )
    found = (getattr(item, listed.name) for item in page.items)
    return [name for name in found if name]


def similar_names(client: PlatformClient, name: str, *kinds: Kind) -> list[str]:
    """Return the names of these kinds that are similar to ``name``, the most similar first."""
    known = [each for kind in kinds for each in names_of(client, kind)]
    return get_close_matches(name, known, n=_SUGGESTED, cutoff=_LIKENESS)


def explain_local_run(error: OsmosisError, run: str | None) -> bool:
    """Explain an error about an evaluation run that is only on this machine; return whether it is."""
    from osmosis_ai.evaluation.manifest import Manifest

    name = (run or "").removeprefix("local:")
    if not name or not can_be_path(name):
        return False
    try:
        directory = find_workspace(require_scaffold=False).evals_dir / name
        Manifest.load(directory / "manifest.json")
    except (OSError, OsmosisError):
        return False
    # Without a login, a platform may have a run of this name, too.
    lost = error.code == "AUTH_REQUIRED" and name == run
    place = "and you are not logged in to a platform" if lost else "not on the platform"
    error.message = f"Run '{name}' is on this machine, {place}."
    error.hint = (
        f"Ctrl-C stops it where it runs; its files are in {directory}; see `osmosis eval info {quote(name)}`"
    )
    return True


def suggestion(client: PlatformClient, path: str) -> str | None:
    """Return a hint after a call of ``path`` found nothing: similar names, or the command that lists them."""
    for kind, listed in _LISTS.items():
        owner = listed.path.removesuffix("/lora")
        # A check misses an object that the config names, not one of its own kind.
        if not path.startswith(f"{owner}/") or path == f"{owner}/check":
            continue
        name = unquote(path[len(owner) + 1 :].partition("/")[0])
        try:
            near = similar_names(client, name, kind)
        except OsmosisError:
            return None
        if near:
            return f"did you mean {' or '.join(near)}?"
        return f"see what there is: `osmosis {listed.command}`"
    return None
