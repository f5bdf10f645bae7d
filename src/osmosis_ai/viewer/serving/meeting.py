"""Where a second command finds the viewer that is open already: a file that only this user reads."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import html
import json
import os
import secrets
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from osmosis_ai.files import open_regular, write_atomic
from osmosis_ai.viewer.serving.app import FRESH_KEY_PATH, OPEN_PATH
from osmosis_ai.viewer.serving.entry import proof_of

_FOLDER = "viewers"
_LARGEST_BYTES = 4096
_PATIENCE_S = 5.0
_OPENING_S = 60.0
_OPENING_PAGE = '<!doctype html><meta charset="utf-8"><meta http-equiv="refresh" content="0;url={url}"><title>Osmosis</title>\n'


@dataclass(frozen=True, slots=True)
class OpenViewer:
    """A viewer that was started here."""

    place: str
    url: str
    host: str
    port: int
    secret: str

    def fresh_address(self, path: str) -> str | None:
        """Return an address that opens ``path`` once; None where no such viewer answers."""
        import httpx

        nonce = secrets.token_urlsafe(16)
        proof = proof_of(self.secret, "ask", nonce, path)
        try:
            # No proxy: it is on this machine.
            with httpx.Client(trust_env=False, timeout=_PATIENCE_S) as client:
                reply = client.post(
                    f"http://{bracketed(self.host)}:{self.port}{FRESH_KEY_PATH}",
                    params={"to": path, "nonce": nonce},
                    headers={"Authorization": f"Bearer {proof}"},
                )
            given = reply.json()
            key, its_proof = str(given["key"]), str(given["proof"])
        except (httpx.HTTPError, ValueError, KeyError, TypeError):
            return None
        is_viewer = hmac.compare_digest(
            its_proof.encode("utf-8", "replace"), proof_of(self.secret, "give", nonce, key).encode()
        )
        return opening_address(self.url, key) if is_viewer else None


def opening_address(url: str, key: str) -> str:
    """Return the address that a key opens."""
    return f"{url}{OPEN_PATH}?key={key}"


def bracketed(host: str) -> str:
    """Return an address of this machine as it stands in a URL."""
    return f"[{host}]" if ":" in host else host


def meeting_file(place: Path, cache_dir: Path) -> Path:
    """Return the file of who shows ``place``."""
    digest = hashlib.sha256(os.fsencode(place)).hexdigest()[:32]
    return cache_dir / _FOLDER / f"{digest}.json"


def found_viewer(file: Path, place: Path) -> OpenViewer | None:
    """Return who shows ``place``; None where nobody says so, or somebody else could have."""
    try:
        with open_regular(file) as opened:
            about = os.fstat(opened.fileno())
            if about.st_uid != os.getuid() or about.st_mode & 0o077:
                return None
            found = OpenViewer(**json.loads(opened.read(_LARGEST_BYTES)))
    except (OSError, ValueError, TypeError):
        return None
    return found if found.place == str(place) and isinstance(found.port, int) else None


def say_who_shows(file: Path, viewer: OpenViewer) -> bool:
    """Write the file that announces a viewer; return False if the directory is not writable."""
    return _left(file, json.dumps(asdict(viewer)))


def leave_opening_page(cache_dir: Path, address: str) -> Path | None:
    """Write a file that leads a browser of this user to an address; None where none can be written."""
    folder = cache_dir / _FOLDER
    for left in folder.glob("open-*.html"):  # nobody opened them
        with contextlib.suppress(OSError):
            if left.lstat().st_mtime < time.time() - _OPENING_S:
                left.unlink()
    page = _opening_page(folder, address.rpartition("key=")[2])
    return page if _left(page, _OPENING_PAGE.format(url=html.escape(address))) else None


def remove_opening_page(folder: Path, key: str) -> None:
    """Remove the file that led to a key, which has been used."""
    with contextlib.suppress(OSError):
        _opening_page(folder, key).unlink()


def _opening_page(folder: Path, key: str) -> Path:
    digest = hashlib.sha256(key.encode("utf-8", "replace")).hexdigest()[:32]
    return folder / f"open-{digest}.html"


def _left(file: Path, text: str) -> bool:
    """Write a file that only this user reads; tell whether it could be."""
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_atomic(file, text, mode=0o600, durable=False)
    except OSError:
        return False
    return True


def forget(file: Path, viewer: OpenViewer) -> None:
    """Take the word back, unless it is another's by now."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        if json.loads(file.read_bytes()).get("secret") == viewer.secret:
            file.unlink()
