"""A row has one digest, whatever file it stands in."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from osmosis_ai.datasets import content_digest, iter_rows, row_digest
from tests.datasets.builders import Row, write, write_rows

FORMATS = ("csv", "json", "jsonl", "parquet")
ROWS: list[Row] = [
    {
        "system_prompt": "Be brief.",
        "user_prompt": "Wie viel ist 6 × 7? 🙂 \u2028 “quoted”, comma,\nnew line\ttab",
        "ground_truth": "42",
        "metadata": {"level": 3, "weight": 0.1, "tags": ["a", "b"], "who": {"name": "Zoë", "id": 2**53 + 1}},
    },
    {
        "system_prompt": "",
        "user_prompt": "e\u0301 is not é",
        "ground_truth": "",
        "metadata": {"level": 4, "weight": 2.0, "tags": [], "who": {"name": "", "id": -1}},
    },
]


def digests(path: Path) -> list[str]:
    return [row_digest(row) for row in iter_rows(path)]


@pytest.mark.parametrize(
    "rows",
    [
        ROWS,
        [{"user_prompt": 2, "ground_truth": 4}, {"user_prompt": 7, "ground_truth": -1}],
        [{"user_prompt": "half", "ground_truth": 0.5}],
    ],
)
def test_the_same_row_has_the_same_digest_in_every_format(tmp_path: Path, rows: list[Row]) -> None:
    found = {name: digests(write_rows(tmp_path, name, rows)) for name in FORMATS}
    assert found["csv"] == found["json"] == found["jsonl"] == found["parquet"]
    assert len(set(found["csv"])) == len(rows)
    assert all(len(digest) == 32 and int(digest, 16) >= 0 for digest in found["csv"])


def test_what_parquet_makes_of_rows_with_other_keys_changes_no_digest(tmp_path: Path) -> None:
    # Its column is one struct for all rows: keys that a row lacks become nulls, and 1 beside 0.5 becomes 1.0.
    rows: list[Row] = [
        {"user_prompt": "a", "metadata": {"x": 1, "deep": {"p": True}}},
        {"user_prompt": "b", "metadata": {"x": 0.5, "other": [1, None]}},
        {"user_prompt": "c", "metadata": {"deep": {"q": "z"}, "other": []}},
    ]
    assert digests(write_rows(tmp_path, "parquet", rows)) == digests(write_rows(tmp_path, "jsonl", rows))


def test_neither_the_order_of_columns_and_keys_nor_other_columns_nor_the_place_count(tmp_path: Path) -> None:
    one = write(
        tmp_path,
        "one.jsonl",
        '{"user_prompt":"p","ground_truth":"g","metadata":{"a":1,"b":{"c":2,"d":null}}}\n',
    )
    other = write(
        tmp_path,
        "other.jsonl",
        '{"id":"x","metadata":{"b":{"c":2},"a":1.0},"label":"zzz","ground_truth":"g","user_prompt":"q"}\n'
        '{"id":"y","metadata":{"b":{"c":2},"a":1.0},"label":"zzz","ground_truth":"g","user_prompt":"p"}\n',
    )
    assert digests(one)[0] == digests(other)[1]
    assert digests(one)[0] != digests(other)[0]


@pytest.mark.parametrize(
    "changed",
    [
        {"system_prompt": "Be long."},
        {"user_prompt": "6 x 8"},
        {"ground_truth": "43"},
        {"metadata": {"level": "3"}},
        {"metadata": {"level": True}},
        {"metadata": {"level": 3, "more": 0}},
        {"metadata": {"Level": 3}},
        {"metadata": None},
    ],
)
def test_whatever_an_agent_or_its_grader_gets_counts(tmp_path: Path, changed: dict[str, Any]) -> None:
    row = {"system_prompt": "s", "user_prompt": "6 x 7", "ground_truth": "42", "metadata": {"level": 3}}
    path = write(tmp_path, "rows.jsonl", json.dumps(row) + "\n" + json.dumps({**row, **changed}) + "\n")
    first, second = digests(path)
    assert first != second


def test_the_digest_of_a_row_never_changes(tmp_path: Path) -> None:
    # Results keep it for good: another value here breaks every comparison with an older run.
    path = write(
        tmp_path, "rows.jsonl", '{"user_prompt": "6 × 7", "ground_truth": "42", "metadata": {"b": 2.0}}\n'
    )
    # The SHA-256 of {"ground_truth":"42","messages":[{"content":"6 × 7","role":"user"}],"metadata":{"b":2}}
    assert digests(path) == ["08b85b950c949b9adf54d22d3194b7c6"]


@pytest.mark.parametrize("absent", [None, {}, {"a": None}, {"a": {"b": None}}, {"a": float("nan")}])
def test_what_is_absent_is_null_however_it_is_spelt(absent: object) -> None:
    assert content_digest(absent) == content_digest(None)
    assert content_digest([absent]) == content_digest([None])
    assert content_digest([]) != content_digest(None)
