"""`osmosis platform status`: whether a platform runs here, and whether it answers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

from osmosis_ai._version import __version__
from osmosis_ai.cli.output.context import current
from osmosis_ai.cli.output.results import DetailResult, Status, Styled, Timestamp
from osmosis_ai.errors import ConflictError, NotFoundError

if TYPE_CHECKING:
    from osmosis_ai.platform.config import PlatformConfig

_MOST_SHOWN = 20
_PATIENCE_S = 15.0
_SILENT = timedelta(minutes=3)
"""For how long nobody hears of a worker that is well at most, with time to spare: it says who it is once a minute."""
_WORDS = {"blobs": "files", "migrations": "schema"}
_DEBUGGABLE = "yes: programs of its user can read its memory and its workers' (OSMOSIS_DEBUGGABLE)"


def status() -> DetailResult:
    """Show the platform that runs on this machine, and the workers that asked it for runs; exits with 1 when there is none.

    Examples:
        osmosis platform status
    """
    from osmosis_ai.platform.config import data_of_environment
    from osmosis_ai.platform.process_state import running_platform

    config = data_of_environment()
    home = config.home
    process = running_platform(home)
    if process is None:
        raise NotFoundError(
            f"no platform runs in {home}.", hint="start it with `osmosis platform start`, or set OSMOSIS_HOME"
        )
    state, problems = _state(process.local_url)
    # What another release has in its database, that one knows.
    workers = _workers(config) if (state, process.version) == ("running", __version__) else []
    cluster = _cluster(process.ray)
    return DetailResult(
        title="Platform",
        data={
            "status": state,
            "problems": problems,
            "url": process.url,
            "local_url": process.local_url,
            "pid": process.pid,
            "home": str(home),
            "blobs": process.blobs,
            "version": process.version,
            "started_at": process.started_at,
            "debuggable": process.debuggable,
            "isolation": process.isolation,
            "executor": process.executor,
            "ray": cluster,
            "warnings": list(process.warnings),
            "workers": workers,
        },
        rows=[
            ("Status", Status(state)),
            *(
                (f"Its {_WORDS.get(name, name)}", f"{why}; its log tells more")
                for name, why in problems.items()
            ),
            ("URL", process.url),
            ("Process", process.pid),
            ("Started", Timestamp(process.started_at)),
            ("Version", process.version),
            ("Data", str(home)),
            *([("Runs on", process.executor)] if process.executor else []),
            *_cluster_row(cluster),
            *([("Isolation", process.isolation)] if process.isolation else []),
            *([("Files", process.blobs)] if process.blobs else []),
            *(("Warning", Styled(warning, "warn")) for warning in process.warnings),
            *([("Debuggable", _DEBUGGABLE)] if process.debuggable else []),
            *_worker_rows(workers),
        ],
    )


def _cluster(written: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return where the Ray cluster of a platform is, and what keeps it from taking runs; None where there is none."""
    if written is None:
        return None
    from osmosis_ai.platform.ray_cluster import RayCluster
    from osmosis_ai.platform.runs.execute.ray_jobs import cluster_problem

    cluster = RayCluster.from_json(written)
    return {"address": cluster.address, "problem": cluster_problem(cluster)}


def _cluster_row(cluster: Mapping[str, Any] | None) -> list[tuple[str, Styled]]:
    problem = cluster["problem"] if cluster is not None else None
    return [("Its cluster", Styled(problem, "warn"))] if problem else []


def _workers(config: PlatformConfig) -> list[dict[str, Any]]:
    """Return the machines that asked for runs with a token that is good."""
    from osmosis_ai.cli.platform.local_platform import iso, local_platform

    try:
        with local_platform(config) as platform:
            known = list(platform.worker_access.known.all())
    except ConflictError as error:
        current().warn(
            f"its workers are not looked up: {error.message} ({error.hint})", code="OTHER_DATABASE"
        )
        return []
    return [
        {
            "machine": worker.machine,
            "pool": worker.pool,
            "labels": worker.labels,
            "cpus": worker.cpus,
            "gpus": worker.gpus,
            "memory_gb": worker.memory_gb,
            "sandbox": worker.sandbox,
            "sandbox_problem": worker.sandbox_problem,
            "runs": runs,
            "seen_at": iso(worker.seen_at),
            "heard_at": iso(heard_at),
        }
        for worker, runs, heard_at in known
    ]


def _worker_rows(workers: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    now = datetime.now(timezone.utc)
    for worker in workers[:_MOST_SHOWN]:
        yield "Worker", _words(worker, now)
    if len(workers) > _MOST_SHOWN:
        yield "Workers", f"{len(workers)} in all; --json lists them"


def _words(worker: Mapping[str, Any], now: datetime) -> str:
    """Return in a line what a machine has, and what it does, or for how long nobody has heard of it."""
    from osmosis_ai.cli.output import formats

    has = [
        f"{worker[key]:g} {what}"
        for key, what in (("cpus", "cpus"), ("gpus", "gpus"), ("memory_gb", "GiB"))
        if worker[key]
    ]
    if worker["sandbox"] is not None:
        has.append("sandbox" if worker["sandbox"] else "no sandbox")
    labels = f" [{', '.join(worker['labels'])}]" if worker["labels"] else ""
    name, runs = formats.one_line(worker["machine"] or "unnamed"), worker["runs"]
    does = f"works on {runs} run{'' if runs == 1 else 's'}" if runs else "idle"
    silence = now - datetime.fromisoformat(worker["heard_at"].replace("Z", "+00:00"))
    if silence > _SILENT:
        does = f"not heard of for {formats.duration(silence.total_seconds())}"
    return f"{name} of {worker['pool']}{labels}: {', '.join(has)}; {does}, asked last {worker['seen_at']}"


def _state(local_url: str | None) -> tuple[str, dict[str, str]]:
    """Return the platform's status, and the failed checks: name -> reason."""
    if local_url is None:
        return "starting", {}
    import httpx

    try:
        health = httpx.get(f"{local_url}/health", timeout=_PATIENCE_S, trust_env=False)
        checks = (
            httpx.get(f"{local_url}/ready", timeout=_PATIENCE_S, trust_env=False).json().get("checks", {})
        )
    except (httpx.HTTPError, ValueError, AttributeError):
        return "unresponsive", {}
    problems = {name: why for name, why in checks.items() if why != "ok"}
    if not health.is_success:
        # What `/ready` says may be some seconds old.
        problems.setdefault("database", "it can not be used")
    return "not ready" if problems else "running", problems
