"""Datasets: of the platform, fetched, sent and checked."""
