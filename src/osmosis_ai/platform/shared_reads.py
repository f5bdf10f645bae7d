"""Cached reads, shared by threads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from typing import Any, TypeVar

ReadT = TypeVar("ReadT")


class SharedReads:
    def __init__(self, *, most: int = 50) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._reads: dict[Hashable, Future[Any]] = {}

    def once(self, key: Hashable, read: Callable[[], ReadT]) -> ReadT:
        """Return the value for ``key``; the first caller reads it and the others wait."""
        with self._lock:
            found = self._reads.get(key)
            if is_mine := found is None:
                found = Future()
                self._reads[key] = found
                if len(self._reads) > self._most:
                    del self._reads[next(iter(self._reads))]
        if is_mine:
            try:
                found.set_result(read())
            except BaseException as error:
                with self._lock:  # callers that are waiting share the failure; later calls read again
                    self._reads.pop(key, None)
                found.set_exception(error)
        result: ReadT = found.result()
        return result
