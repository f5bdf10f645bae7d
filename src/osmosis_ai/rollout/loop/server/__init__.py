"""HTTP server of an agent loop, for controllers on other machines.

``init`` starts a rollout and a callback reports its outcome. Creating an application needs the `server` extra.
"""
