"""The decorators of reward functions at their path of 0.2; this module is :mod:`osmosis_ai.rewards` itself."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from osmosis_ai.rewards import *  # noqa: F403
else:
    from osmosis_ai import rewards

    # The same object, so that patches in tests apply to the code in use.
    sys.modules[__name__] = rewards
