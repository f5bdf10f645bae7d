"""Osmosis: evaluate and train LLM agents."""

from osmosis_ai._version import __version__

__all__ = ["__version__"]
