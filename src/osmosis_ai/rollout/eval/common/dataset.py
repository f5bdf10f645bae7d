from osmosis_ai.evaluation.agent_loop.inputs import *  # noqa: F403
