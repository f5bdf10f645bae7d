"""The client's typed calls, one module per resource: which route, which message, which retry."""
