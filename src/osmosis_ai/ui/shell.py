"""What the shell and the macros of the kit are given: plain values, made by whoever answers a request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class NavItem:
    """A link of the main navigation or of the way back (the crumbs)."""

    text: str
    href: str
    current: bool = False


@dataclass(frozen=True, slots=True)
class ShellView:
    """What surrounds a page.

    Attributes:
        product: named behind every title.
        nav: the main navigation.
        root: what stands before the path of every link; no slash at its end.
        assets: where the assets are, without a slash at the end.
        user: who is signed in; None where nobody has to.
        sign_out: where a POST signs them out.
        csrf: the token that every form which changes something sends as ``csrf``.
        live: where a page hears of changes; None for one that does not change.
        live_cursor: up to which of them the page shows what there is.
        theme: ``light``, ``dark``, or "" for the system's (:func:`osmosis_ai.ui.policy.theme_of`).
    """

    product: str = "Osmosis"
    nav: Sequence[NavItem] = ()
    root: str = ""
    assets: str = "/assets"
    user: str | None = None
    sign_out: str | None = None
    csrf: str = ""
    live: str | None = None
    live_cursor: str = ""
    theme: str = ""
