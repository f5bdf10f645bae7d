"""Input values of the shell and the kit's macros."""

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
    """Where the changes of what a page shows come from, and up to which of them it shows what there is."""

    href: str
    cursor: str


@dataclass(frozen=True, slots=True)
class ShellView:
    """What surrounds a page."""

    workspace: str = ""
    nav: Sequence[NavItem] = ()
    root: str = ""
    assets: str = "/assets"
    user: str | None = None
    sign_out: str | None = None
    csrf: str = ""
    live: LiveChanges | None = None
    theme: str = ""
