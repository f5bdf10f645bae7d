"""Evaluating an agent: plan, run, journal, metrics. One engine for every caller.

The result of an attempt is durable before it is acknowledged, so a run can be killed at any moment and continued:
finished attempts are neither lost nor repeated. Start reading at :mod:`osmosis_ai.evaluation.runner`.
"""
