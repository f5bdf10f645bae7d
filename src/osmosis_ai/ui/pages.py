"""Templates, styles and scripts by digest, security headers, and the page shell."""

from __future__ import annotations

import gzip
import hashlib
import re
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote

from markupsafe import Markup

from osmosis_ai.ui import numbers
from osmosis_ai.ui.text import ansi, code, markdown, visible

if TYPE_CHECKING:
    from jinja2 import Environment


PAGE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
"""Content Security Policy: our own styles and modules, nothing inline or external."""

THEME_COOKIE = "osmosis_theme"
"""A cookie, so that the server renders the chosen theme at once."""


def page_headers(*, form_leads_to: str = "", keep: bool = True) -> dict[str, str]:
    policy = PAGE_POLICY
    if form_leads_to:
        policy = policy.replace("form-action 'self'", f"form-action 'self' {form_leads_to}")
    return {
        "Content-Security-Policy": policy,
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Cache-Control": "private, no-cache" if keep else "no-store",
    }


def artifact_headers(name: str) -> dict[str, str]:
    """Return the headers of a download called ``name`` (RFC 6266 and 8187)."""
    encoded = quote(name.encode("utf-8", "replace"), safe="")
    return {
        **page_headers(),
        "Content-Security-Policy": "default-src 'none'; sandbox",
        "Content-Disposition": f"attachment; filename*=UTF-8''{encoded}",
    }


def theme_of(cookie: str | None) -> str:
    """Return the theme of a cookie's value; "" for the system's."""
    return cookie if cookie in ("light", "dark") else ""


class NavItem(NamedTuple):
    text: str
    href: str
    current: bool = False


class LiveChanges(NamedTuple):
    href: str
    cursor: str


@dataclass(frozen=True, slots=True)
class ShellView:
    workspace: str = ""
    workspaces: Sequence[NavItem] = ()
    nav: Sequence[NavItem] = ()
    root: str = ""
    assets: str = "/assets"
    user: str | None = None
    sign_out: str | None = None
    csrf: str = ""
    live: LiveChanges | None = None
    theme: str = ""


KIT = Path(__file__).parent / "kit"


class Asset(NamedTuple):
    media_type: str
    content: bytes
    gzipped: bytes

    def reply(self, accept_encoding: str) -> tuple[bytes, dict[str, str]]:
        headers = {
            "Content-Type": self.media_type,
            # A year: a name with a digest never changes content.
            "Cache-Control": "public, max-age=31536000, immutable",
            "X-Content-Type-Options": "nosniff",
            "Vary": "Accept-Encoding",
        }
        if "gzip" in accept_encoding.lower():
            return self.gzipped, {**headers, "Content-Encoding": "gzip"}
        return self.content, headers


@lru_cache
def assets() -> Mapping[str, Asset]:
    types = {"viewer.css": "text/css; charset=utf-8", "page.js": "text/javascript; charset=utf-8"}
    made: dict[str, Asset] = {}
    for plain, media_type in types.items():
        # Indentation and comments are not sent.
        lines = (line.strip() for line in (KIT / plain).read_text("utf-8").splitlines())
        content = "\n".join(line for line in lines if line and not line.startswith("//")).encode()
        stem, _, suffix = plain.rpartition(".")
        name = f"{stem}-{hashlib.sha256(content).hexdigest()[:8]}.{suffix}"
        made[name] = Asset(media_type, content, gzip.compress(content, mtime=0))
    return made


def asset_name(plain: str) -> str:
    return next(name for name in assets() if name.startswith(f"{plain.partition('.')[0]}-"))


def templates(*folders: Path) -> Environment:
    from jinja2 import DictLoader, Environment, StrictUndefined

    environment = Environment(
        loader=DictLoader(_sources((*folders, KIT))),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_shown,
    )
    environment.globals["asset"] = asset_name
    environment.filters.update({each.__name__: each for each in _FILTERS})
    return environment


def _sources(folders: Sequence[Path]) -> dict[str, str]:
    """Return all templates, read once so that an upgrade does not mix versions; earlier folders take precedence."""
    return {
        path.relative_to(folder).as_posix(): path.read_text(encoding="utf-8")
        for folder in reversed(folders)
        for path in folder.rglob("*.html")
    }


def _shown(value: Any) -> Any:
    return visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def breakable(name: str) -> Markup:
    return Markup("/<wbr>").join(visible(part) for part in name.split("/"))


def moment(when: datetime | str | None) -> Markup | str:
    if when is None:
        return numbers.MISSING
    iso = visible(numbers.iso(when))
    shown = visible(numbers.date(when, zone=timezone.utc))
    return Markup('<time datetime="{}">{}</time>').format(iso, shown)


def duration_ms(milliseconds: float | None) -> str:
    return numbers.duration(None if milliseconds is None else milliseconds / 1000)


def sentence(text: str) -> str:
    """Return a message with a capital letter at its start, unless it starts with a name such as ``lora_rank``."""
    return text[:1].upper() + text[1:] if re.match("[a-z]+ ", text) else text


_FILTERS: Sequence[Callable[..., Any]] = (
    *(ansi, breakable, code, markdown, moment, duration_ms, sentence, numbers.compact, numbers.count),
    *(numbers.duration, numbers.money, numbers.number, numbers.percent, numbers.size),
)


def one_file_policy(style: str) -> str:
    digest = b64encode(hashlib.sha256(style.encode()).digest()).decode()
    return f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
