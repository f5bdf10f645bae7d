"""How a worker's process may end; any other way is a death."""

from __future__ import annotations

ENDED = 0
"""The run is terminal, or was let go on purpose."""
NOT_MINE = 75
"""Another worker has the run; try again later (``EX_TEMPFAIL``)."""
LEASE_LOST = 76
"""Another worker took the run over while this one was at it."""
SET_BACK = 78
"""Our own infrastructure failed, and the run is as it was: to be tried again. The working directory says why."""
LEARNER_LOST = 77
"""A process that learned together with this one is gone: a death, after which another worker goes on."""
