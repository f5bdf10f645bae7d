from osmosis_ai.evaluation.agent_loop.llm_client import *  # noqa: F403
