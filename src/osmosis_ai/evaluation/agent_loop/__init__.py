"""Evaluating agent loops: their datasets, the classes that run them in this process, and the documented results."""
