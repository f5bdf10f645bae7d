"""What somebody probably meant."""

from __future__ import annotations

from collections.abc import Iterable


def closest(word: str, known: Iterable[str]) -> str | None:
    """Return the one of ``known`` that ``word`` is most likely a misspelling of, if any is near enough."""
    from difflib import get_close_matches

    by_folded = {name.lower().replace("-", "_"): name for name in known}
    near = get_close_matches(word.lower().replace("-", "_"), by_folded, n=1, cutoff=0.6)
    return by_folded[near[0]] if near else None
