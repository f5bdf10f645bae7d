"""Who learns: the policy's adapter, the passes of a step over one or more devices, and its checkpoints."""

from osmosis_ai.moved_modules import names_of_former_module

__getattr__ = names_of_former_module(__name__)
