"""What a platform is made of is an extra of this package; who has not installed it is told how."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from osmosis_ai.errors import MissingExtraError


@contextmanager
def platform_extra() -> Iterator[None]:
    """Import parts of the platform inside the block.

    Raises:
        MissingExtraError: the `platform` extra is not installed.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        raise MissingExtraError("platform", error.name or "sqlalchemy") from error
