"""Evaluations: run here, followed and fetched from a platform, held against rules."""
