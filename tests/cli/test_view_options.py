"""What `osmosis view` makes of its options before it looks at anything."""

from __future__ import annotations

import pytest

from tests.cli.conftest import Cli


@pytest.mark.parametrize(
    "words", [("--max-mb", "2"), ("--max-mb", "10"), ("--all",), ("--no-text", "--force")]
)
def test_what_is_of_a_report_needs_one(cli: Cli, words: tuple[str, ...]) -> None:
    result = cli("view", *words)
    assert (result.status, result.out) == (2, "")
    assert all(word in result.err for word in words if word.startswith("--")) and "--report" in result.err
