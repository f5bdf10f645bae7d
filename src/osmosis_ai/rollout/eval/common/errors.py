"""Alias of :mod:`osmosis_ai.evaluation.agent_loop.inputs` (0.2 import path)."""

import sys

from osmosis_ai.evaluation.agent_loop import inputs
from osmosis_ai.evaluation.agent_loop.inputs import *  # noqa: F403

sys.modules[__name__] = inputs  # so that patching a name here affects the code in use
