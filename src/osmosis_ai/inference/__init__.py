"""Built-in model server: `osmosis/tiny` on NumPy behind an OpenAI-compatible endpoint.

Importing this package loads neither NumPy nor a model. ``python -m osmosis_ai.inference`` serves in the foreground.
"""

from osmosis_ai.inference.catalog import served_models
from osmosis_ai.inference.process import InferenceServer

__all__ = ["InferenceServer", "served_models"]
