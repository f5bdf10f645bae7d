"""Workspaces and their directories on this machine: found, checked, mended."""
