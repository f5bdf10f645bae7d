"""Cache of worker authorizations, valid for one second.

Every exchange checks its bearer token for its run. A revoked token or withdrawn ticket takes effect within
:data:`TRUSTED_S`, and immediately in the same process. A run's pool and workspace never change. Ownership is not
cached: each exchange checks its lease in the writing transaction.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from osmosis_ai.platform.clock import Clock

TRUSTED_S = 1.0
"""How long a bearer that was good is taken for good."""
_MOST = 10_000
Key = TypeVar("Key")
Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class _Scope:
    """Whose runs a worker token is good for, until a moment."""

    pool: str
    workspaces: Sequence[str] | None
    until: float


class WorkerAdmissions:
    """What is known of bearers, by their hashes, and of runs."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._tokens: OrderedDict[str, _Scope] = OrderedDict()
        self._tickets: OrderedDict[tuple[str, str], float] = OrderedDict()
        self._runs: OrderedDict[str, tuple[str | None, str]] = OrderedDict()

    def admits(self, digest: str, run_id: str) -> bool:
        """Tell whether a bearer is known to be good for a run; False: the database has to be asked."""
        now = self._clock.monotonic()
        with self._lock:
            if now < self._tickets.get((digest, run_id), 0.0):
                return True
            token, run = self._tokens.get(digest), self._runs.get(run_id)
        if token is None or run is None or now >= token.until:
            return False
        pool, workspace = run
        return pool == token.pool and (token.workspaces is None or workspace in token.workspaces)

    def note_token(self, digest: str, pool: str, workspaces: Sequence[str] | None) -> None:
        """Take note of a worker token that was found good."""
        until = self._clock.monotonic() + TRUSTED_S
        with self._lock:
            _keep(self._tokens, digest, _Scope(pool, workspaces, until))

    def note_run(self, run_id: str, pool: str | None, workspace: str) -> None:
        """Take note of whose a run is."""
        with self._lock:
            _keep(self._runs, run_id, (pool, workspace))

    def note_ticket(self, digest: str, run_id: str) -> None:
        """Take note of a ticket that was found good for a run, by a worker that has synced."""
        until = self._clock.monotonic() + TRUSTED_S
        with self._lock:
            _keep(self._tickets, (digest, run_id), until)

    def forget_bearers(self) -> None:
        """Trust nobody any more: one of them was revoked."""
        with self._lock:
            self._tokens.clear()
            self._tickets.clear()


def _keep(known: OrderedDict[Key, Value], key: Key, value: Value) -> None:
    known[key] = value
    known.move_to_end(key)
    if len(known) > _MOST:
        known.popitem(last=False)
