"""Datasets: list, upload, download, validate."""
