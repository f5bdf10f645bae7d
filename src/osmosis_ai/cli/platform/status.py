"""`osmosis platform status`: whether a platform runs here, and whether it answers."""

from __future__ import annotations

from osmosis_ai.cli.output.results import DetailResult, Status, Timestamp
from osmosis_ai.errors import NotFoundError


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
    state = _state(process.local_url)
    return DetailResult(
        title="Platform",
        data={
            "status": state,
            "url": process.url,
            "local_url": process.local_url,
            "pid": process.pid,
            "home": str(home),
            "version": process.version,
            "started_at": process.started_at,
        },
        rows=[
            ("Status", Status(state)),
            ("URL", process.url),
            ("Process", process.pid),
            ("Started", Timestamp(process.started_at)),
            ("Version", process.version),
            ("Data", str(home)),
        ],
    )


def _state(local_url: str | None) -> str:
    if local_url is None:
        return "starting"
    import httpx

    try:
        healthy = httpx.get(f"{local_url}/health", timeout=5.0, trust_env=False).is_success
    except httpx.HTTPError:
        healthy = False
    return "running" if healthy else "unresponsive"
