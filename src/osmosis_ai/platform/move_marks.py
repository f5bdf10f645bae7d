"""The marks of a move: where a database or a store of files went, and where it came from.

Each has at most one of both. A move has an id, which is the same on both sides, so that a way back finds what it left.
The source's mark is made first, as *unfinished*; then the target's; the source's is finished when everything is there
and equal, and the target's last. So at no moment can a platform start on both sides, and whatever is killed in
between goes on from what is written.
"""

from __future__ import annotations

import json
import secrets
from dataclasses import asdict, dataclass
from typing import Literal

from osmosis_ai.errors import ConflictError, OsmosisError

Direction = Literal["arrival", "departure"]


@dataclass(frozen=True, slots=True)
class Mark:
    """One side of a move.

    Args:
        id: of the move.
        peer: the other side, as people are told of it; never with a password.
        finished: whether all of it is there.
        backup: the file that keeps what the move replaces, noted before it is written; None where nothing is replaced.
    """

    id: str
    peer: str
    finished: bool = False
    backup: str | None = None

    @classmethod
    def of_new_move(cls, peer: str) -> Mark:
        """Return the mark of a move that begins."""
        return cls(f"move_{secrets.token_hex(12)}", peer)

    def to_json(self) -> str:
        """Return it as it is kept."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str | bytes) -> Mark:
        """Return what :meth:`to_json` wrote.

        Raises:
            OsmosisError: it is something else.
        """
        try:
            found = json.loads(text)
            backup = found.get("backup")  # earlier releases noted none
            finished = found["finished"] is True
            return cls(
                str(found["id"]), str(found["peer"]), finished, None if backup is None else str(backup)
            )
        except (ValueError, KeyError, TypeError, AttributeError):
            raise OsmosisError("a mark of `osmosis platform move` is damaged.", code="INTERNAL") from None


@dataclass(frozen=True, slots=True)
class Marks:
    """What moves have left in one place.

    Args:
        arrival: of the move that filled it.
        departure: of the move that took what it holds elsewhere.
    """

    arrival: Mark | None = None
    departure: Mark | None = None

    def require_here(self, what: str, place: str, variable: str) -> None:
        """Refuse to use what is elsewhere now, or not all here yet.

        Args:
            what: lies here (``database``).
            place: where this is, for people.
            variable: of the environment that says where to look.

        Raises:
            ConflictError: it is not to be used.
        """
        if self.departure is not None and self.departure.finished:
            raise ConflictError(
                f"this platform's {what} moved to {self.departure.peer}; what {place} holds is what it was then.",
                details={"successor": self.departure.peer},
                hint=f"set {variable} to where it is now; `osmosis platform move`, started there, moves it back",
            )
        if self.arrival is not None and not self.arrival.finished:
            raise ConflictError(
                f"a move of the {what} from {self.arrival.peer} to {place} is not finished.",
                details={"source": self.arrival.peer},
                hint=f"set {variable} to where it came from and run the same `osmosis platform move` again: it goes on",
            )
