from osmosis_ai.evaluation.agent_loop.interactive import *  # noqa: F403
