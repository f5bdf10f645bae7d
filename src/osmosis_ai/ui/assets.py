"""Styles and ES modules by names that hold their digest, so that a browser keeps them for good."""

from __future__ import annotations

import gzip
import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from osmosis_ai.ui.policy import ASSET_CACHING

KIT = Path(__file__).parent / "kit"
MODULES = KIT / "modules"
_IMPORT = re.compile(r'(?<=")\./([a-z]+\.js)(?=";)')


@dataclass(frozen=True, slots=True)
class Asset:
    """A file that pages load."""

    name: str
    media_type: str
    content: bytes
    gzipped: bytes

    def reply(self, accept_encoding: str) -> tuple[bytes, dict[str, str]]:
        """Return body and headers for a client that accepts these encodings."""
        headers = {
            "Content-Type": self.media_type,
            "Cache-Control": ASSET_CACHING,
            "X-Content-Type-Options": "nosniff",
            "Vary": "Accept-Encoding",
        }
        if "gzip" in accept_encoding.lower():
            return self.gzipped, {**headers, "Content-Encoding": "gzip"}
        return self.content, headers


@lru_cache
def assets() -> Mapping[str, Asset]:
    """Return every asset under its name with digest."""
    return {made.name: made for made in _made().values()}


def asset_name(plain: str) -> str:
    """Return the name with digest of ``viewer.css`` or of a module such as ``page.js``."""
    return _made()[plain].name


def style_files() -> list[Path]:
    """Return the files of ``viewer.css``: tokens and kit first, what belongs to single pages after them."""
    first = [KIT / "tokens.css", KIT / "kit.css"]
    return [*first, *sorted(set(KIT.glob("*.css")) - set(first))]


@lru_cache
def _made() -> Mapping[str, Asset]:
    styles = "\n".join(file.read_text("utf-8") for file in style_files())
    made = {"viewer.css": _asset("viewer.css", "text/css; charset=utf-8", styles)}
    for file in sorted(MODULES.glob("*.js")):
        _make_module(file.name, made)
    return made


def _make_module(plain: str, made: dict[str, Asset]) -> str:
    """Make a module after those that it imports, and return its name with digest."""
    if plain not in made:
        source = (MODULES / plain).read_text("utf-8")
        linked = _IMPORT.sub(lambda found: f"./{_make_module(found[1], made)}", source)
        made[plain] = _asset(plain, "text/javascript; charset=utf-8", linked)
    return made[plain].name


def _asset(plain: str, media_type: str, text: str) -> Asset:
    content = text.encode("utf-8")
    stem, _, suffix = plain.rpartition(".")
    name = f"{stem}-{hashlib.sha256(content).hexdigest()[:8]}.{suffix}"
    return Asset(name, media_type, content, gzip.compress(content, mtime=0))
