"""Agent loops: an agent that is given a model client and says itself when it is done.

The other way to write an agent is :class:`osmosis_ai.rollout.AgentWorkflow`; both run on the same engine.
Names for users are in :mod:`osmosis_ai.rollout`. Nothing here imports a web framework or LiteLLM before it is used.
"""
