"""Runs of this machine as a viewer sees them: evaluations, training runs and judging sessions below a directory."""
