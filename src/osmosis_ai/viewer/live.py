"""What is new in a run, told while it happens: one reader a run on the server, however many look at it."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import NamedTuple

from osmosis_ai.errors import NotFoundError, OsmosisError
from osmosis_ai.viewer.local_runs import RunKind
from osmosis_ai.viewer.shared_reads import SharedReads
from osmosis_ai.viewer.source import GOING_ON, Changes, RunSource

logger = logging.getLogger(__name__)

READ_EVERY_S = 1.0
KEEP_ALIVE_S = 15.0
"""How often a silent stream says that it is there, and every stream whether its visitor may still look."""
MAX_STREAMS = 4
"""Of one visitor: a browser opens six connections to a server, and the others are for pages."""
POLL_AGAIN_S = 5
_LINGER_S = 6.0
"""How long a reader continues without viewers; longer than the interval of a polling client."""
_REMEMBERED = 120
_MOST_SAMPLES = 500


class Watched(NamedTuple):
    """A run that is looked at; ``place`` tells those of one name apart, and is a workspace's or nothing."""

    place: str
    kind: RunKind
    run: str


@dataclass(frozen=True, slots=True)
class LiveNews:
    """What a stream says: what is new, or why it ends (``ended``, ``gone`` or ``refused``)."""

    changes: Changes | None = None
    end: str | None = None


def is_over(changes: Changes) -> bool:
    """Tell whether a run will not change any more; one that was killed is gone on with under its name."""
    return changes.status not in (*GOING_ON, "incomplete")


class LiveHub:
    """The readers of a server; its methods are for the event loop's thread."""

    def __init__(self, *, read_every_s: float = READ_EVERY_S, keep_alive_s: float = KEEP_ALIVE_S) -> None:
        self._read_every_s, self._keep_alive_s = read_every_s, keep_alive_s
        self._readers: dict[Watched, _RunReader] = {}
        self._streams: Counter[str] = Counter()
        self._closed = False

    def may_stream(self, visitor: str) -> bool:
        """Tell whether a visitor may open one more stream."""
        return not self._closed and self._streams[visitor] < MAX_STREAMS

    async def changes(self, watched: Watched, source: RunSource, *, since: str | None = None) -> Changes:
        """Return how a run stands, and what came since a cursor that was given before."""
        reader = await self._reader(watched, source)
        if since and reader.end is None and since not in [each.cursor for each in reader.remembered]:
            # A page that was made after the last look would be told what was before it.
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(reader.told.wait(), 2 * self._read_every_s)
        return reader.since(since) or replace(reader.remembered[-1], samples=(), more=False)

    async def stream(
        self,
        watched: Watched,
        source: RunSource,
        *,
        visitor: str = "",
        since: str | None = None,
        allowed: Callable[[], bool] | None = None,
    ) -> AsyncIterator[LiveNews]:
        """Yield how a run stands, then what is new as it comes; nothing new for a while is an empty one."""
        reader = await self._reader(watched, source)
        if not self.may_stream(visitor):
            return  # the limit was reached; the client's next try reports it
        loop = asyncio.get_running_loop()
        asked = loop.time()
        reader.watchers += 1
        self._streams[visitor] += 1
        try:
            while not self._closed:
                told = reader.told
                if (found := reader.since(since)) is not None:
                    since = found.cursor
                    yield LiveNews(found)
                if reader.end is not None:
                    yield LiveNews(end=reader.end)
                    return
                with suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(told.wait(), self._keep_alive_s)
                if not told.is_set():
                    yield LiveNews()
                if allowed is not None and loop.time() - asked >= self._keep_alive_s:
                    asked = loop.time()
                    if not await asyncio.to_thread(allowed):
                        yield LiveNews(end="refused")
                        return
        finally:
            reader.watchers -= 1
            self._streams -= Counter([visitor])  # which keeps those above 0

    def reads(self, watched: Watched) -> SharedReads | None:
        """Return what was read of a run since its last change; None where nobody looks. For any thread."""
        reader = self._readers.get(watched)
        return reader.reads if reader is not None and reader.failure is None else None

    def close(self) -> None:
        """End every stream and reader: the server stops."""
        self._closed = True
        for reader in self._readers.values():
            reader.stop()

    async def _reader(self, watched: Watched, source: RunSource) -> _RunReader:
        reader = self._readers.get(watched)
        if reader is None or reader.task.done():
            reader = self._readers[watched] = _RunReader(watched, source, self._read_every_s)
            # All who look fetch what a run has come to when it ends.
            loop = asyncio.get_running_loop()
            reader.task.add_done_callback(lambda _: loop.call_later(_LINGER_S, self._forget, watched, reader))
        while not reader.remembered and not self._closed:
            await reader.told.wait()
            if reader.failure is not None:
                raise reader.failure
        if self._closed:
            raise OsmosisError("the server stops.", code="INTERNAL")
        return reader

    def _forget(self, watched: Watched, reader: _RunReader) -> None:
        if self._readers.get(watched) is reader:
            del self._readers[watched]


class _RunReader:
    """Reads one run for all who look."""

    def __init__(self, watched: Watched, source: RunSource, read_every_s: float) -> None:
        self._watched, self._source, self._read_every_s = watched, source, read_every_s
        self.remembered: deque[Changes] = deque(maxlen=_REMEMBERED)
        self.watchers = 0
        self._looked = asyncio.get_running_loop().time()
        self.told = asyncio.Event()
        self.end: str | None = None
        self.reads: SharedReads | None = None
        self.failure: Exception | None = None
        self.task = asyncio.create_task(self._read())

    def since(self, cursor: str | None) -> Changes | None:
        """Return what came after a cursor; None when nothing did."""
        self._looked = asyncio.get_running_loop().time()
        known = [changes.cursor for changes in self.remembered]
        if cursor is None or cursor not in known:
            return replace(self.remembered[-1], samples=(), more=cursor is not None)
        if not (later := list(self.remembered)[known.index(cursor) + 1 :]):
            return None
        samples = tuple(dict.fromkeys(sample for changes in later for sample in changes.samples))
        more = any(changes.more for changes in later) or len(samples) > _MOST_SAMPLES
        return replace(self.remembered[-1], samples=samples[:_MOST_SAMPLES], more=more)

    def stop(self) -> None:
        """Read no more, and wake all who wait."""
        self.task.cancel()
        self._tell()

    async def _read(self) -> None:
        kind, run = self._watched.kind, self._watched.run
        loop = asyncio.get_running_loop()
        try:
            while self.watchers or loop.time() - self._looked < _LINGER_S:
                since = self.remembered[-1].cursor if self.remembered else None
                found = await asyncio.to_thread(self._source.changes, kind, run, since=since)
                if found.cursor != since:
                    self.remembered.append(found)
                    self.reads = SharedReads()
                    self.end = "ended" if is_over(found) else None
                    self._tell()
                if self.end is not None:
                    return
                await asyncio.sleep(self._read_every_s)
        except Exception as error:  # told to all who look, each of whom asks again
            self.end = "gone" if isinstance(error, NotFoundError) else "failed"
            self.failure = error
            if self.remembered and self.end == "failed":
                logger.warning("the %s run %s cannot be read", kind, run, exc_info=True)
            self._tell()

    def _tell(self) -> None:
        told, self.told = self.told, asyncio.Event()
        told.set()
