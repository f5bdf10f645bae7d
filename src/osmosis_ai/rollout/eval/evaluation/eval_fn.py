"""Alias of :mod:`osmosis_ai.rollout.loop.eval_functions` (0.2 import path)."""

import sys

from osmosis_ai.rollout.loop import eval_functions
from osmosis_ai.rollout.loop.eval_functions import *  # noqa: F403

sys.modules[__name__] = eval_functions  # so that patching a name here affects the code in use
