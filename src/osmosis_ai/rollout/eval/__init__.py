"""Local tests and evaluations of agent loops under their 0.2 import paths."""
