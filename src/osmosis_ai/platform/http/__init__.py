"""The platform's HTTP: a module per resource, each with its ``router``."""
