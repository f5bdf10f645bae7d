"""Moving a platform: its rows to another database, its files to another store; its data directory stays.

Everything is copied, compared and only then handed over (:mod:`osmosis_ai.platform.move_marks`), and whatever ends a
move early, the same command goes on where it was. The way back is the same.
"""

from osmosis_ai.platform.moving.move import Destination, MoveReport, move_platform

__all__ = ["Destination", "MoveReport", "move_platform"]
