"""How far a move is, by the marks on its two sides, and what a target must be like to be taken."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from enum import Enum, auto
from typing import Protocol

from osmosis_ai.errors import ConflictError
from osmosis_ai.platform.move_marks import Mark, Marks


class Stage(Enum):
    """How far a move is."""

    NEW = auto()
    """Nothing has been done, and the target is empty."""
    REPLACES = auto()
    """Nothing has been done, and the target is what this platform moved away from."""
    BEGUN = auto()
    """The target has some of it."""
    DEPARTED = auto()
    """The target has all of it, which the source knows."""
    DONE = auto()
    """Both know."""


class Bar(Protocol):
    """How far something is."""

    def update(self, completed: float) -> None:
        """Say how much is done."""


class Showing(Protocol):
    """Shows how far something is while a block lasts."""

    def __call__(self, description: str, *, total: float | None, unit: str) -> AbstractContextManager[Bar]:
        """Begin to show it."""


def departure_of(source: Marks, peer: str) -> Mark:
    """Return the mark that a source has, or is to have, of its move to ``peer``."""
    departure = source.departure
    if departure is not None:
        if departure.finished or departure.peer == peer:
            return departure
        return replace(departure, peer=peer, backup=None)  # what another place held was kept
    return Mark.of_new_move(peer)


def stage_of(what: str, source: Marks, target: Marks, shown: str, content: Callable[[], str | None]) -> Stage:
    """Return how far the move is that the departure of ``source`` belongs to.

    Args:
        what: is moved (``database``).
        source: its marks, with the departure's.
        target: its marks.
        shown: the target, for people.
        content: says what a target holds, None where it is empty.

    Raises:
        ConflictError: the target is not to be taken, or the source is elsewhere already.
    """
    departure, arrival = source.departure, target.arrival
    assert departure is not None
    if target.departure is not None and target.departure.id == departure.id:
        raise ConflictError(f"the platform's {what} is {shown} already.", hint="name another place")
    ours = arrival is not None and arrival.id == departure.id
    if departure.finished:
        if not ours or arrival is None:
            raise ConflictError(
                f"this platform's {what} moved to {departure.peer}.",
                details={"successor": departure.peer},
                hint="move it from there: that is where the platform starts now",
            )
        return Stage.DONE if arrival.finished else Stage.DEPARTED
    if ours:
        return Stage.BEGUN
    if _left_by(source, target):
        return Stage.REPLACES
    if arrival is not None:
        raise ConflictError(
            f"{shown} holds another move, from {arrival.peer}.", hint="name an empty place, or empty this one"
        )
    if (found := content()) is not None:
        raise ConflictError(
            f"{shown} is not empty: it holds {found}.",
            hint="name an empty one; what this platform itself moved away from is taken with --replace",
        )
    return Stage.NEW


def _left_by(source: Marks, target: Marks) -> bool:
    """Tell whether what ``source`` holds came from ``target``."""
    left, came = target.departure, source.arrival
    return left is not None and left.finished and came is not None and came.id == left.id
