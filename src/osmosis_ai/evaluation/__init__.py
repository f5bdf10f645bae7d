"""Evaluating an agent: plan, run, journal, metrics. One engine for every caller.

A *work item* is a row and an attempt on it. Its result is durable before it is acknowledged, so a
run can be killed at any moment and continued: nothing finished is lost, nothing finished is
repeated. Start reading at :mod:`osmosis_ai.evaluation.runner`.
"""
