"""How commands reach the platform: what it has to say beside its replies goes to the user at once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from osmosis_ai.cli.output.context import current

if TYPE_CHECKING:
    from osmosis_ai.services.context import PlatformContext


@contextmanager
def platform_context(
    start: Path | None = None, *, require_scaffold: bool = True
) -> Iterator[PlatformContext]:
    """Open the context of a command about a workspace; see :func:`osmosis_ai.services.context.open_context`.

    Args:
        start: a directory or file of the workspace directory; the current directory when None.
        require_scaffold: whether the directories of a workspace must be there.
    """
    from osmosis_ai.services.context import open_context

    with open_context(start, require_scaffold=require_scaffold, warn=current().warn) as context:
        yield context
