"""Sandboxes for rollouts, which see only their own run; ``isolation`` decides whether they have one."""
