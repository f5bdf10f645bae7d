"""Datasets: of the platform, fetched, sent and checked."""

from osmosis_ai.moved_modules import names_of_former_module

__getattr__ = names_of_former_module(__name__)
