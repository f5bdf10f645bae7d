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
class LiveChanges:
    """Where the changes of what a page shows come from, and up to which of them it shows what there is.

    Without a cursor no more are to come, and a page that is looked at again asks whether what it shows is still there.
    """

    href: str
    cursor: str


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
        live: where a page hears of changes; None for one that hears of none.
        theme: ``light``, ``dark``, or "" for the system's (:func:`osmosis_ai.ui.policy.theme_of`).
    """

    product: str = "Osmosis"
    nav: Sequence[NavItem] = ()
    root: str = ""
    assets: str = "/assets"
    user: str | None = None
    sign_out: str | None = None
    csrf: str = ""
    live: LiveChanges | None = None
    theme: str = ""
