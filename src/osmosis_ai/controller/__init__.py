"""Runs rollouts: prepares their environment, starts and calls their servers, receives their results.

The meaning of a result is up to :mod:`osmosis_ai.evaluation` and training.
"""
