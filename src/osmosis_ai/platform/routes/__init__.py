"""The REST API: one module per resource, each with its ``router``."""
