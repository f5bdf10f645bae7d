"""The path that the 0.2 SDK has for this: the very module, so that what is replaced in it is what is used."""

from __future__ import annotations

import sys

from osmosis_ai.rollout.loop.server.serve import DEFAULT_HOST as DEFAULT_HOST
from osmosis_ai.rollout.loop.server.serve import DEFAULT_PORT as DEFAULT_PORT
from osmosis_ai.rollout.loop.server.serve import ServeError as ServeError
from osmosis_ai.rollout.loop.server.serve import serve_agent_loop as serve_agent_loop
from osmosis_ai.rollout.loop.server.serve import validate_and_report as validate_and_report

sys.modules[__name__] = sys.modules["osmosis_ai.rollout.loop.server.serve"]
