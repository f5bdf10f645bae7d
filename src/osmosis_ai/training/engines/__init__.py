"""Who samples: the policy's engine in this process or vLLM, and the endpoint that records every token of a rollout."""

from osmosis_ai.moved_modules import names_of_former_module

__getattr__ = names_of_former_module(__name__)
