"""Alias of :mod:`osmosis_ai.evaluation.agent_loop.runner` (0.2 import path)."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from osmosis_ai.evaluation.agent_loop.runner import *  # noqa: F403
else:
    from osmosis_ai.evaluation.agent_loop import runner

    # Alias the module itself, so that patching a name here affects the code in use.
    sys.modules[__name__] = runner
