from __future__ import annotations

import json
from itertools import pairwise
from pathlib import PurePosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from osmosis_ai.redaction import REDACTED, Redactor, exposure_warnings, why_not_hidden


def test_value_inside_a_longer_one() -> None:
    assert Redactor(["hunter", "hunter2-extended"]).text("pw=hunter2-extended;") == "pw=[REDACTED];"


def test_overlapping_values() -> None:
    assert Redactor(["abcdef", "defghi"]).text("-abcdefghi-") == "-[REDACTED]-"


def test_value_inside_the_placeholder() -> None:
    assert Redactor(["s3cret", "REDACTED"]).text("a s3cret REDACTED") == "a [REDACTED] [REDACTED]"


@pytest.mark.parametrize(
    "spelling",
    [
        'p"ss\\wörd\n+x',
        json.dumps('p"ss\\wörd\n+x')[1:-1],
        json.dumps('p"ss\\wörd\n+x', ensure_ascii=False)[1:-1],
        repr('p"ss\\wörd\n+x'),
        "p%22ss%5Cw%C3%B6rd%0A%2Bx",
        json.dumps(json.dumps({"key": 'p"ss\\wörd\n+x'})),
        json.dumps(json.dumps(json.dumps({"key": 'p"ss\\wörd\n+x'}, ensure_ascii=False))),
        json.dumps(repr('p"ss\\wörd\n+x')),
        "p&quot;ss\\wörd\n+x",
    ],
)
def test_encoded_values(spelling: str) -> None:
    assert "ss" not in Redactor(['p"ss\\wörd\n+x']).text(f"<{spelling}>")


def test_multiline_value_in_a_single_line() -> None:
    key = "-----BEGIN KEY-----\nMIIEvQIBADANBgkq\nhkiG9w0BAQEFAASC\n-----END KEY-----\n"

    assert Redactor([key]).text("line: MIIEvQIBADANBgkq") == "line: [REDACTED]"


@pytest.mark.parametrize("length", [8, 9, 19])
def test_truncated_value(length: int) -> None:
    value = "sk-proj-0123456789\n3"
    redact = Redactor([value])
    assert redact.text(f"it failed with {value[:length]}") == f"it failed with {REDACTED}"
    assert redact.text(f"{value[:9]} of {value[:length]}") == f"{value[:9]} of {REDACTED}"


def test_short_beginning_of_a_value() -> None:
    assert Redactor(["https://key@host"]).text("see https:/") == "see https:/"


def test_short_values() -> None:
    assert Redactor(["1", "no", "false", ""]).text("no 1 false") == "no 1 false"


def test_json_values_keys_and_depth() -> None:
    tree = {"a": ["x s3cret", {"s3cret": 1}], "value": 0.4, "none": None}

    assert Redactor(["s3cret"]).tree(tree) == {
        "a": ["x [REDACTED]", {"[REDACTED]": 1}],
        "value": 0.4,
        "none": None,
    }


def test_json_literals() -> None:
    redact = Redactor(["123456", "true", "null", "-1.5e10"])

    assert redact.tree({"n": 123456, "yes": True, "none": None, "pin": "PIN 123456"}) == {
        "n": 123456,
        "yes": True,
        "none": None,
        "pin": "PIN [REDACTED]",
    }


def test_other_types_in_json() -> None:
    assert Redactor(["s3cret"]).tree({"path": PurePosixPath("/a/s3cret")}) == {"path": "/a/[REDACTED]"}


@pytest.mark.parametrize("value", ["true", "null", "1", "12345", "123456", "-1.50e10", "NaN", "+.5", "abcde"])
def test_warning_about_short_values(value: str) -> None:
    (warning,) = exposure_warnings({"API_KEY": value, "OTHER": "sk-1234567"})
    assert warning.startswith("the value of API_KEY cannot be hidden in logs and results: it ")
    assert value not in warning.replace("(true, false, null)", "")


@pytest.mark.parametrize("value", ["sk-123", "1.2.3.4", "truely", "correct horse", "1e5 and more"])
def test_no_warning_for_hidden_values(value: str) -> None:
    assert why_not_hidden(value) is None


@given(st.lists(st.text(min_size=6, max_size=12), min_size=1, max_size=4), st.text(max_size=20))
def test_no_value_survives(values: list[str], glue: str) -> None:
    redacted = Redactor(values).text(glue.join(values))

    rest = redacted.replace("[REDACTED]", "\0")
    assert not any(value in rest for value in values if "\0" not in value)


@given(
    st.lists(st.text("ab", min_size=1, max_size=5), max_size=3),
    st.lists(st.text("abc\n", max_size=12), max_size=8),
)
def test_streamed_text(values: list[str], pieces: list[str]) -> None:
    redactor = Redactor(values, shortest=1)
    assert "".join(redactor.in_pieces(pieces)) == redactor.text("".join(pieces))


@given(st.lists(st.integers(min_value=0, max_value=60), max_size=6))
def test_value_across_chunks(cuts: list[int]) -> None:
    text = "a key is s3cret-of-nine-lives\\u00e9 and s3cret-of-nine-livesé, s3cret-of"
    at = [0, *sorted(cuts), len(text)]
    pieces = [text[start:stop] for start, stop in pairwise(at)]
    whole = Redactor(["s3cret-of-nine-livesé"])
    assert (
        "".join(whole.in_pieces(pieces))
        == whole.text(text)
        == f"a key is {REDACTED} and {REDACTED}, {REDACTED}"
    )


def test_redactor_repr() -> None:
    assert "s3cret" not in repr(Redactor(["s3cret"]))
