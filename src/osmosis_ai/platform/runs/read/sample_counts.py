"""Counts of samples, remembered: what looks at every sample of a run is worked out once for as long as it holds."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, TypeVar, cast

CountedT = TypeVar("CountedT")

_MOST_COUNTED = 500


class SampleCounts:
    """What was counted of runs, for as long as it holds; may be used by several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: OrderedDict[Hashable, Any] = OrderedDict()

    def once(self, key: Hashable, count: Callable[[], CountedT]) -> CountedT:
        """Return what was counted under ``key``, or count it."""
        with self._lock:
            if key in self._known:
                self._known.move_to_end(key)
                return cast(CountedT, self._known[key])
        counted = count()
        with self._lock:
            self._known[key] = counted
            if len(self._known) > _MOST_COUNTED:
                self._known.popitem(last=False)
        return counted
