"""The other end of a rollout: prepares its environment, starts its server, drives it, takes its results.

Nothing here decides what a result means; :mod:`osmosis_ai.evaluation` and training do.
"""
