"""Who is let in: the browser that was shown an address with a key, and nobody else who reaches the port."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections import OrderedDict
from threading import Lock

MOST_KEYS = 20
MOST_SESSIONS = 50


class ViewerKeys:
    """One-time keys, and the sessions that they were changed into."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._unused: OrderedDict[bytes, str] = OrderedDict()
        self._sessions: OrderedDict[bytes, None] = OrderedDict()

    def make(self, leads_to: str) -> str:
        """Return a key that lets one browser in, at the path ``leads_to``; old ones that nobody used are forgotten."""
        key = secrets.token_urlsafe(32)
        with self._lock:
            self._unused[_digest(key)] = leads_to
            while len(self._unused) > MOST_KEYS:
                self._unused.popitem(last=False)
        return key

    def change(self, key: str) -> tuple[str, str] | None:
        """Return (session, path) for a key, which is used up; None for one that nobody made or that is used."""
        with self._lock:
            path = self._unused.pop(_digest(key), None)
            if path is None:
                return None
            session = secrets.token_urlsafe(32)
            self._sessions[_digest(session)] = None
            while len(self._sessions) > MOST_SESSIONS:
                self._sessions.popitem(last=False)
            return session, path

    def is_in(self, session: str) -> bool:
        """Tell whether a session is one of this process."""
        with self._lock:
            return _digest(session) in self._sessions


def proof_of(secret: str, *said: str) -> str:
    """Return what only who knows ``secret`` can say of these words (HMAC, RFC 2104)."""
    return hmac.new(secret.encode(), "\0".join(said).encode("utf-8", "replace"), "sha256").hexdigest()


def _digest(given: str) -> bytes:
    return hashlib.sha256(given.encode("utf-8", "replace")).digest()
