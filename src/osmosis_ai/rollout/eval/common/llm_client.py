"""Alias of :mod:`osmosis_ai.evaluation.agent_loop.llm_client` (0.2 import path)."""

import sys

from osmosis_ai.evaluation.agent_loop import llm_client
from osmosis_ai.evaluation.agent_loop.llm_client import *  # noqa: F403

sys.modules[__name__] = llm_client  # so that patching a name here affects the code in use
