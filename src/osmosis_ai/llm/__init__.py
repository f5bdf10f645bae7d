"""Calling models: who serves a model, how many calls may run at once, what a call costs, what went wrong."""
