"""Alias of :mod:`osmosis_ai.evaluation.agent_loop.runner` (0.2 import path)."""

import sys

from osmosis_ai.evaluation.agent_loop import runner
from osmosis_ai.evaluation.agent_loop.runner import *  # noqa: F403

sys.modules[__name__] = runner  # so that patching a name here affects the code in use
