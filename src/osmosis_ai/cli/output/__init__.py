"""Output has one rule: stdout carries the result and nothing else; all the rest goes to stderr."""
