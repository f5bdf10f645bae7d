"""The path that the 0.2 SDK has for this: the very module, so that what is replaced in it is what is used."""

from __future__ import annotations

import sys

from osmosis_ai.rollout.loop.api_key import API_KEY_PREFIX as API_KEY_PREFIX
from osmosis_ai.rollout.loop.api_key import generate_api_key as generate_api_key
from osmosis_ai.rollout.loop.api_key import validate_api_key as validate_api_key

sys.modules[__name__] = sys.modules["osmosis_ai.rollout.loop.api_key"]
