from osmosis_ai.evaluation.agent_loop.runner import *  # noqa: F403
