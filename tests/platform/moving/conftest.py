"""The command line in this process, beside the platform of these tests."""

from tests.cli.conftest import cli, fleet, logging_as_it_was

__all__ = ["cli", "fleet", "logging_as_it_was"]
