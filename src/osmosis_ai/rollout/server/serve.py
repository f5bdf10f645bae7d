"""Alias of the module that implements this 0.2 import path, so that patching a name here affects the code in use."""

from __future__ import annotations

import sys

from osmosis_ai.rollout.loop.server.serve import DEFAULT_HOST as DEFAULT_HOST
from osmosis_ai.rollout.loop.server.serve import DEFAULT_PORT as DEFAULT_PORT
from osmosis_ai.rollout.loop.server.serve import ServeError as ServeError
from osmosis_ai.rollout.loop.server.serve import serve_agent_loop as serve_agent_loop
from osmosis_ai.rollout.loop.server.serve import validate_and_report as validate_and_report

sys.modules[__name__] = sys.modules["osmosis_ai.rollout.loop.server.serve"]
