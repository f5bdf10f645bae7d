"""Workspaces and their directories on this machine: found, checked, mended."""

from osmosis_ai.moved_modules import names_of_former_module

__getattr__ = names_of_former_module(__name__)
