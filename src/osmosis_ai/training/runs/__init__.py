"""A training run: its directory, its plan, its loop of sampling and learning, and its validations."""
