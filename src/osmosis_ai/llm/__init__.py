"""Model calls: providers, concurrency limits, prices and errors."""
