"""Alias of the module that implements this 0.2 import path, so that patching a name here affects the code in use."""

from __future__ import annotations

import sys

from osmosis_ai.rollout.loop.api_key import API_KEY_PREFIX as API_KEY_PREFIX
from osmosis_ai.rollout.loop.api_key import generate_api_key as generate_api_key
from osmosis_ai.rollout.loop.api_key import validate_api_key as validate_api_key

sys.modules[__name__] = sys.modules["osmosis_ai.rollout.loop.api_key"]
