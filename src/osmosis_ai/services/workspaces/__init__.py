"""Workspaces and workspace directories: list, check, fix."""
