"""A loop behind HTTP, for controllers on other machines: ``init`` starts a rollout, its outcome is called back.

Needs the `server` extra once an application is made.
"""
