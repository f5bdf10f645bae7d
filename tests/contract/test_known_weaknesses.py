"""Each of the thirteen known weaknesses of 0.2 has a test of its own, which bears its number."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).parents[1]


def test_every_known_weakness_has_a_named_test() -> None:
    named = re.compile(r"^(?:async )?def test_weakness(?:es)?_(\d+(?:_and_\d+)*)_", re.MULTILINE)
    names = [name for file in TESTS.rglob("test_*.py") for name in named.findall(file.read_text("utf-8"))]
    found = {int(number) for name in names for number in name.split("_and_")}
    assert found == set(range(1, 14))
