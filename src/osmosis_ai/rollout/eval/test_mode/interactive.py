"""Alias of :mod:`osmosis_ai.evaluation.agent_loop.interactive` (0.2 import path)."""

import sys

from osmosis_ai.evaluation.agent_loop import interactive
from osmosis_ai.evaluation.agent_loop.interactive import *  # noqa: F403

sys.modules[__name__] = interactive  # so that patching a name here affects the code in use
