"""Rollouts: written, listed, and tried before they are sent away."""
