"""Agent loops: agents that receive a model client and decide themselves when they are done.

:class:`osmosis_ai.rollout.AgentWorkflow` is the other way to write an agent; both run on the same engine.
Public names are in :mod:`osmosis_ai.rollout`. Web framework and LiteLLM are imported only when used.
"""
