"""Benchmarks of the hosted platform: the catalogue, and the runs of agents on them."""
