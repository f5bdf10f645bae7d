"""Security headers of browser replies: allowed sources and caching."""

from __future__ import annotations

from urllib.parse import quote

PAGE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
"""Content Security Policy Level 3: our own styles and modules, nothing inline, nothing from elsewhere."""

THEME_COOKIE = "osmosis_theme"
"""Set by the page's own script, read by the server, so that a page is never painted in the other theme first."""

ASSET_CACHING = "public, max-age=31536000, immutable"
"""For a year: what is named by its digest never changes."""


def page_headers(*, form_leads_to: str = "", keep: bool = True) -> dict[str, str]:
    """Return the headers of a page."""
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
    """Return the headers of a download called ``name`` (RFC 6266; the name as RFC 8187 encodes it)."""
    encoded = quote(name.encode("utf-8", "replace"), safe="")
    return {
        **page_headers(),
        "Content-Security-Policy": "default-src 'none'; sandbox",
        "Content-Disposition": f"attachment; filename*=UTF-8''{encoded}",
    }


def theme_of(cookie: str | None) -> str:
    """Return the theme that a visitor chose, from the value of :data:`THEME_COOKIE`; "" for the system's."""
    return cookie if cookie in ("light", "dark") else ""
