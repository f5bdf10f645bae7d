"""The decorators of reward functions, under the path that 0.2 had: this is :mod:`osmosis_ai.rewards` itself."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from osmosis_ai.rewards import *  # noqa: F403
else:
    from osmosis_ai import rewards

    # What a test patches here must be the thing in use.
    sys.modules[__name__] = rewards
