"""Agent-loop evaluations (0.2 import paths)."""

from osmosis_ai.evaluation.agent_loop.runner import *  # noqa: F403
from osmosis_ai.rollout.eval_functions import *  # noqa: F403
