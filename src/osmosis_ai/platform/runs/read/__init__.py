"""Runs as people see them: lists, details, curves and downloads, while the runs go on."""
