"""The path under which users of the 0.3 SDK know the judge; it lives in :mod:`osmosis_ai.rubric`."""
