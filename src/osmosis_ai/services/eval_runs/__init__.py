"""Evaluations: run here, followed and fetched from a platform, held against rules."""

from osmosis_ai.moved_modules import names_of_former_module

__getattr__ = names_of_former_module(__name__)
