"""The workspace directory: a Git work tree that holds rollouts, their configs and their data."""
