"""Rollouts: create, list and check before submit."""
