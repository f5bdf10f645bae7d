"""`osmosis benchmark submit`: from a config file to a benchmark run of the hosted platform.

What is sent is the config as it is written, names of secrets, and values only of those that the user has put into a
secrets file and that `[secrets].required` lists. No code of the repository runs here or there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from osmosis_ai.api.wire.benchmarks import BenchmarkRunSubmit, SubmittedBenchmarkRun
    from osmosis_ai.services.context import PlatformContext
    from osmosis_ai.services.runs.secrets import RunSecret
    from osmosis_ai.workspace.config_files import BenchmarkConfig

PARITY_WARNING = "HLE_PARITY_RECOMMENDED"
_PARITY_BENCHMARK = "hle"


@dataclass(frozen=True)
class PreparedBenchmarkRun:
    """A benchmark run that is ready to be submitted.

    Attributes:
        body: what is sent; may hold values of secrets.
        notes: what the user is agreeing to.
        warnings: what may not be as the user thinks.
        parity_advice: that results will not compare with published ones; None where they may.
    """

    config: BenchmarkConfig
    body: BenchmarkRunSubmit = field(repr=False)
    secrets: tuple[RunSecret, ...]
    notes: tuple[str, ...]
    warnings: tuple[str, ...]
    parity_advice: str | None

    def described(self) -> dict[str, Any]:
        """Return what is submitted, in the sections of the config."""
        written = self.config.written
        return {
            "experiment": dict(written["experiment"]),
            "tasks": dict(written.get("tasks", {})),
            "agents": [_without_headers(agent) for agent in written["agents"]],
            "execution": dict(written.get("execution", {})),
        }


def prepare_benchmark(
    context: PlatformContext,
    config: Path,
    *,
    secret_values: Mapping[str, str] | None = None,
    tell: Callable[[str], None] = lambda _stage: None,
) -> PreparedBenchmarkRun:
    """Read and check everything a submit needs.

    Args:
        context: workspace directory, login and platform.
        config: a file of ``configs/benchmark/``.
        secret_values: from the user's secrets file, for this run alone.
        tell: takes what takes a moment.

    Raises:
        PlatformError: ``NOT_OFFERED``, where the platform has no benchmarks.
        OsmosisError: naming what is wrong and how to mend it.
    """
    from osmosis_ai.api.capabilities import Capability
    from osmosis_ai.api.wire.benchmarks import BenchmarkRunSubmit
    from osmosis_ai.redaction import exposure_warnings
    from osmosis_ai.services.capabilities import require_offered
    from osmosis_ai.services.runs.secrets import plan_run_secrets, supplied_values, unused_values
    from osmosis_ai.workspace.config_files import load_benchmark_config

    loaded = load_benchmark_config(config, context.workspace)
    supplied = supplied_values(loaded.secrets, secret_values or {})
    context.client.hide(supplied.values())
    tell("Asking the platform")
    require_offered(context.client, Capability.BENCHMARKS)
    plan = plan_run_secrets(context.client, loaded.referenced, supplied, suppliable=loaded.secrets)
    payload = loaded.payload()
    if supplied:
        payload["secrets"]["provided"] = supplied
    doubts = [plan.doubt, unused_values(loaded.secrets, secret_values or {}), *exposure_warnings(supplied)]
    return PreparedBenchmarkRun(
        config=loaded,
        body=BenchmarkRunSubmit.model_validate(payload),
        secrets=plan.secrets,
        notes=(f"The config is read from this machine: {loaded.path.name}.",),
        warnings=tuple(filter(None, doubts)),
        parity_advice=_parity_advice(loaded),
    )


def submit_benchmark(context: PlatformContext, prepared: PreparedBenchmarkRun) -> SubmittedBenchmarkRun:
    """Submit, once.

    Raises:
        PlatformError: the platform refused; or it did not answer, and the run may exist all the same.
    """
    from osmosis_ai.services.runs.secrets import explaining_failures

    with explaining_failures("osmosis benchmark runs list"):
        return context.client.benchmark_runs.submit(prepared.body)


def _parity_advice(config: BenchmarkConfig) -> str | None:
    tasks = config.written.get("tasks", {})
    if config.written["experiment"]["benchmark"] != _PARITY_BENCHMARK or tasks.get("task_set") == "parity":
        return None
    return (
        f"published results on {_PARITY_BENCHMARK} are on its parity tasks: "
        'write task_set = "parity" into [tasks] to compare with them.'
    )


def _without_headers(agent: Mapping[str, Any]) -> dict[str, Any]:
    """Return an agent as results show it: values of headers may be keys."""
    model = dict(agent["model"])
    if "extra_headers" in model:
        model["extra_headers"] = sorted(model["extra_headers"])
    return {**agent, "model": model}
