"""The workspace directory: a Git work tree with rollouts, their configs and their data."""
