"""Agent-loop tests (0.2 import paths)."""

from osmosis_ai.evaluation.agent_loop.inputs import *  # noqa: F403
from osmosis_ai.evaluation.agent_loop.interactive import *  # noqa: F403
from osmosis_ai.evaluation.agent_loop.llm_client import *  # noqa: F403
from osmosis_ai.evaluation.agent_loop.runner import *  # noqa: F403
