"""Built-in model server: `osmosis/tiny` on NumPy behind an OpenAI-compatible endpoint.

`InferenceServer` runs the endpoint in its own process; `python -m osmosis_ai.inference` runs
it in the foreground. Importing this package loads neither NumPy nor a model.
"""

from osmosis_ai.inference.catalog import served_models
from osmosis_ai.inference.process import InferenceServer

__all__ = ["InferenceServer", "served_models"]
