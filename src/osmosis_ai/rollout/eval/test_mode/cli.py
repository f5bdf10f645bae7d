from osmosis_ai.rollout.eval.common import *  # noqa: F403
