"""`osmosis platform status`: whether a platform runs here, and whether it answers."""

from __future__ import annotations

from osmosis_ai.cli.output.results import DetailResult, Status, Timestamp
from osmosis_ai.errors import NotFoundError

_DEBUGGABLE = "yes: programs of its user can read its memory and its workers' (OSMOSIS_DEBUGGABLE)"


def status() -> DetailResult:
    """Show the platform that runs on this machine; exits with 1 when there is none.

    Examples:
        osmosis platform status
    """
    from osmosis_ai.platform.config import from_environment
    from osmosis_ai.platform.process_state import running_platform

    home = from_environment().home
    process = running_platform(home)
    if process is None:
        raise NotFoundError(
            f"no platform runs in {home}.", hint="start it with `osmosis platform start`, or set OSMOSIS_HOME"
        )
    state, runs_to_fill = _state(process.local_url)
    filling = f"{runs_to_fill} to be read for tokens, cost and previews" if runs_to_fill else None
    return DetailResult(
        title="Platform",
        data={
            "status": state,
            "url": process.url,
            "local_url": process.local_url,
            "pid": process.pid,
            "home": str(home),
            "blobs": process.blobs,
            "version": process.version,
            "started_at": process.started_at,
            "runs_to_fill": runs_to_fill,
            "debuggable": process.debuggable,
            "isolation": process.isolation,
            "executor": process.executor,
        },
        rows=[
            ("Status", Status(state)),
            ("URL", process.url),
            ("Process", process.pid),
            ("Started", Timestamp(process.started_at)),
            ("Version", process.version),
            ("Data", str(home)),
            *([("Runs on", process.executor)] if process.executor else []),
            *([("Isolation", process.isolation)] if process.isolation else []),
            *([("Files", process.blobs)] if process.blobs else []),
            *([("Earlier runs", filling)] if filling else []),
            *([("Debuggable", _DEBUGGABLE)] if process.debuggable else []),
        ],
    )


def _state(local_url: str | None) -> tuple[str, int]:
    """Return how the platform is, and of how many runs it has yet to read what an earlier release did not record."""
    if local_url is None:
        return "starting", 0
    import httpx

    try:
        reply = httpx.get(f"{local_url}/health", timeout=5.0, trust_env=False).raise_for_status()
        left = reply.json().get("runs_to_fill", 0)
    except (httpx.HTTPError, ValueError, AttributeError):
        return "unresponsive", 0
    return "running", left if isinstance(left, int) else 0
