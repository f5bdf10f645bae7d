"""Keep a worker's lease alive and receive stop requests immediately.

One thread long-polls the platform. Another watches the clock, so that an unresponsive platform cannot hide the lease's
expiry.
"""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable

from osmosis_ai.errors import OsmosisError
from osmosis_ai.platform.runs.lifecycle import LeaseLostError
from osmosis_ai.platform.runs.work.platform_link import CredentialRefusedError
from osmosis_ai.platform.runs.work.run_channel import RunChannel

_LOOK_S = 0.25
_SILENCE_IN_PACES = 1.5
_SILENCE_S = 1.0
"""After how long of nothing said a question is held: never, while news flow at their pace, or nearly."""


class LeaseKeeping:
    """Keeps the lease of one run, in threads of its own."""

    def __init__(
        self,
        channel: RunChannel,
        *,
        on_lost: Callable[[], None],
        on_cut_off: Callable[[], None],
        on_refused: Callable[[], None],
    ) -> None:
        self._channel = channel
        self._on_lost = on_lost
        self._on_cut_off = on_cut_off
        self._on_refused = on_refused
        self._ended = threading.Event()
        self._failure: Exception | None = None

    def start(self) -> None:
        """Keep it from now on; whether the run is to stop is known at once, where the platform answers."""
        self._ask(may_wait=False)
        for name, work in (("lease", self._keep), ("lease-watch", self._watch)):
            threading.Thread(target=work, name=name, daemon=True).start()

    def stop(self) -> None:
        """Keep it no longer."""
        self._ended.set()

    def _keep(self) -> None:
        while not self._ended.wait(_LOOK_S):
            long_s = max(min(_SILENCE_S, self._channel.term_s / 4), _SILENCE_IN_PACES * self._channel.pace_s)
            if self._channel.silence_s() >= long_s:
                try:
                    # One that has said nothing for long is asked for an answer now.
                    self._ask(may_wait=self._channel.silence_s() < self._channel.term_s / 2)
                except (
                    Exception
                ) as error:  # the edge of this thread, without which the run would be another's soon
                    if type(error) is not type(self._failure):
                        traceback.print_exception(error)
                    self._failure = error

    def _ask(self, *, may_wait: bool) -> None:
        try:
            self._channel.sync(**({"may_wait": True} if may_wait else {}))
        except LeaseLostError:
            if not self._ended.is_set():
                self._ended.set()
                self._on_lost()
        except CredentialRefusedError:
            self._ended.set()
            self._on_refused()
        except OsmosisError:
            pass  # away or busy: the token still decides, so trying again is safe

    def _watch(self) -> None:
        said_after: int | None = None
        while not self._ended.wait(_LOOK_S):
            answers = self._channel.answers
            if self._channel.has_run_out() and said_after != answers:
                said_after = answers
                self._on_cut_off()
