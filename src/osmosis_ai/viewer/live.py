"""Live updates: open pages ask for a run's state every two seconds, and it is read at most once a second."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import orjson
from fastapi import APIRouter, Depends, FastAPI, Request
from fastapi.responses import JSONResponse
from starlette.responses import Response

from osmosis_ai.errors import NotFoundError, OsmosisError
from osmosis_ai.ui.run_numbers import score_json
from osmosis_ai.viewer.access import SECTIONS, SharedReads, Viewing
from osmosis_ai.viewer.local_runs import RunKind
from osmosis_ai.viewer.source import RunSource, RunState

READ_EVERY_S = 1.0
_KEPT_S = 5.0
"""How long a state is kept without a viewer; longer than the interval of the pages."""
_NOT_STORED = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}


class Watched(NamedTuple):
    """A watched run; ``place`` is the path of its workspace, empty on this machine."""

    place: str
    kind: RunKind
    run: str


@dataclass
class _Known:
    read_at: float
    state: RunState | None = None
    reads: SharedReads = field(default_factory=SharedReads)
    lock: threading.Lock = field(default_factory=threading.Lock)


class LiveStates:
    """The states of watched runs; thread-safe."""

    def __init__(self, *, read_every_s: float = READ_EVERY_S) -> None:
        self._read_every_s = read_every_s
        self._lock = threading.Lock()
        self._known: dict[Watched, _Known] = {}

    def state(self, watched: Watched, source: RunSource) -> RunState:
        """Return the state of a run; one that may change is at most a second old."""
        with self._lock:
            now = time.monotonic()
            self._known = {run: known for run, known in self._known.items() if now - known.read_at < _KEPT_S}
            known = self._known.setdefault(watched, _Known(now))
        with known.lock:
            is_new = time.monotonic() - known.read_at < self._read_every_s
            if known.state is None or known.state.ended or not is_new:
                found = source.state(watched.kind, watched.run)
                if known.state is not None and found.cursor != known.state.cursor:
                    known.reads = SharedReads()
                known.state, known.read_at = found, time.monotonic()
            return known.state

    def reads(self, watched: Watched) -> SharedReads | None:
        """Return the cached reads of the current state; None without a viewer."""
        with self._lock:
            known = self._known.get(watched)
        return known.reads if known is not None and time.monotonic() - known.read_at < _KEPT_S else None


def live_states(app: FastAPI) -> LiveStates:
    found = getattr(app.state, "live_states", None)
    if not isinstance(found, LiveStates):
        found = app.state.live_states = LiveStates()
    return found


def add_live(router: APIRouter, viewing: Callable[..., Viewing], kind: RunKind) -> None:
    """Add the address of a run's state."""

    @router.get(f"/{SECTIONS[kind]}/{{run}}/changes", include_in_schema=False, response_model=None)
    def changes(request: Request, view: Viewing = Depends(viewing)) -> Response:  # noqa: B008 - FastAPI's way
        watched = Watched(view.root, kind, request.path_params["run"])
        try:
            now = live_states(request.app).state(watched, view.source)
        except OsmosisError as error:
            status = 404 if isinstance(error, NotFoundError) else 400 if error.code == "VALIDATION" else 503
            return JSONResponse({"message": error.message}, status, headers=_NOT_STORED)
        headline = score_json(now.headline)
        shown = {"cursor": now.cursor, "status": now.status, "headline": headline, "ended": now.ended}
        return Response(orjson.dumps(shown), media_type="application/json", headers=_NOT_STORED)
