"""The client of a controller under the path that 0.2 had: this is the module :mod:`osmosis_ai.rollout.loop.client` itself."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from osmosis_ai.rollout.loop.client import *  # noqa: F403
else:
    from osmosis_ai.rollout.loop import client

    # What a test patches here must be the thing in use.
    sys.modules[__name__] = client
