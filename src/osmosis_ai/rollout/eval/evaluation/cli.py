"""Inputs of agent-loop commands (0.2 import path)."""

from osmosis_ai.rollout.eval.common.cli import *  # noqa: F403
