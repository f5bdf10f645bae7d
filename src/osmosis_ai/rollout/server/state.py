"""Alias of the module that implements this 0.2 import path, so that patching a name here affects the code in use."""

from __future__ import annotations

import sys

from osmosis_ai.rollout.loop.server.state import AppState as AppState

sys.modules[__name__] = sys.modules["osmosis_ai.rollout.loop.server.state"]
