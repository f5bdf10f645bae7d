from osmosis_ai.rollout.eval_functions import *  # noqa: F403
