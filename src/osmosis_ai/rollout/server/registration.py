"""The path that the 0.2 SDK has for this: the very module, so that what is replaced in it is what is used."""

from __future__ import annotations

import sys

from osmosis_ai.rollout.loop.server.registration import Registration as Registration
from osmosis_ai.rollout.loop.server.registration import start_registering as start_registering

sys.modules[__name__] = sys.modules["osmosis_ai.rollout.loop.server.registration"]
