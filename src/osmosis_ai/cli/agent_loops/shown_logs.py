"""What `--debug` shows of the user's own logging: every line of it on stderr, and of libraries the warnings."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from osmosis_ai.cli.output import formats
from osmosis_ai.cli.output.context import OutputContext

# At their lowest levels they tell of every byte, and some of them of keys.
_LIBRARIES = ("LiteLLM", "aiohttp", "asyncio", "httpcore", "httpx", "openai", "urllib3")


@contextmanager
def logs_shown(output: OutputContext, *, wanted: bool) -> Iterator[None]:
    """Show logs on stderr until the block ends, secret values taken out."""
    if not wanted:
        yield
        return
    root, handler = logging.getLogger(), _Lines(output)
    before = {logger: logger.level for logger in (root, *map(logging.getLogger, _LIBRARIES))}
    for logger in before:
        logger.setLevel(logging.DEBUG if logger is root else logging.WARNING)
    root.addHandler(handler)
    try:
        yield
    finally:
        root.removeHandler(handler)
        for logger, level in before.items():
            logger.setLevel(level)


class _Lines(logging.Handler):
    def __init__(self, output: OutputContext) -> None:
        super().__init__()
        self._output = output
        self.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        self._output.say(formats.literal(self.format(record)))
