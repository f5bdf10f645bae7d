from __future__ import annotations

import json
from itertools import pairwise
from pathlib import PurePosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from osmosis_ai.redaction import REDACTED, Redactor, exposure_warnings, why_not_hidden


def test_a_value_inside_a_longer_one_leaves_no_rest() -> None:
    assert Redactor(["hunter", "hunter2-extended"]).text("pw=hunter2-extended;") == "pw=[REDACTED];"


def test_overlapping_values_are_blanked_together() -> None:
    assert Redactor(["abcdef", "defghi"]).text("-abcdefghi-") == "-[REDACTED]-"


def test_a_value_that_is_part_of_the_placeholder_does_not_garble_it() -> None:
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
def test_a_value_is_found_however_it_is_spelt(spelling: str) -> None:
    assert "ss" not in Redactor(['p"ss\\wörd\n+x']).text(f"<{spelling}>")


def test_a_key_of_several_lines_is_blanked_in_a_log_of_single_lines() -> None:
    key = "-----BEGIN KEY-----\nMIIEvQIBADANBgkq\nhkiG9w0BAQEFAASC\n-----END KEY-----\n"

    assert Redactor([key]).text("line: MIIEvQIBADANBgkq") == "line: [REDACTED]"


@pytest.mark.parametrize("length", [8, 9, 19])
def test_a_value_at_which_a_text_was_cut_off_is_blanked_as_far_as_it_is_there(length: int) -> None:
    value = "sk-proj-0123456789\n3"
    redact = Redactor([value])
    assert redact.text(f"it failed with {value[:length]}") == f"it failed with {REDACTED}"
    assert redact.text(f"{value[:9]} of {value[:length]}") == f"{value[:9]} of {REDACTED}"


def test_a_few_characters_with_which_a_value_begins_are_left_alone() -> None:
    assert Redactor(["https://key@host"]).text("see https:/") == "see https:/"


def test_short_values_are_left_alone() -> None:
    assert Redactor(["1", "no", "false", ""]).text("no 1 false") == "no 1 false"


def test_json_is_blanked_in_values_keys_and_depth() -> None:
    tree = {"a": ["x s3cret", {"s3cret": 1}], "value": 0.4, "none": None}

    assert Redactor(["s3cret"]).tree(tree) == {
        "a": ["x [REDACTED]", {"[REDACTED]": 1}],
        "value": 0.4,
        "none": None,
    }


def test_what_json_writes_without_quotes_stays_what_it_is() -> None:
    redact = Redactor(["123456", "true", "null", "-1.5e10"])

    assert redact.tree({"n": 123456, "yes": True, "none": None, "pin": "PIN 123456"}) == {
        "n": 123456,
        "yes": True,
        "none": None,
        "pin": "PIN [REDACTED]",
    }


def test_what_json_has_no_type_for_is_blanked_as_text() -> None:
    assert Redactor(["s3cret"]).tree({"path": PurePosixPath("/a/s3cret")}) == {"path": "/a/[REDACTED]"}


@pytest.mark.parametrize("value", ["true", "null", "1", "12345", "123456", "-1.50e10", "NaN", "+.5", "abcde"])
def test_a_value_that_can_not_be_hidden_is_told_by_name_and_never_repeated(value: str) -> None:
    (warning,) = exposure_warnings({"API_KEY": value, "OTHER": "sk-1234567"})
    assert warning.startswith("the value of API_KEY cannot be hidden in logs and results: it ")
    assert value not in warning.replace("(true, false, null)", "")


@pytest.mark.parametrize("value", ["sk-123", "1.2.3.4", "truely", "correct horse", "1e5 and more"])
def test_a_value_that_is_hidden_warns_of_nothing(value: str) -> None:
    assert why_not_hidden(value) is None


@given(st.lists(st.text(min_size=6, max_size=12), min_size=1, max_size=4), st.text(max_size=20))
def test_no_value_survives_in_any_text_made_of_them(values: list[str], glue: str) -> None:
    redacted = Redactor(values).text(glue.join(values))

    rest = redacted.replace("[REDACTED]", "\0")
    assert not any(value in rest for value in values if "\0" not in value)


@given(
    st.lists(st.text("ab", min_size=1, max_size=5), max_size=3),
    st.lists(st.text("abc\n", max_size=12), max_size=8),
)
def test_a_text_in_pieces_is_blanked_as_if_it_were_whole(values: list[str], pieces: list[str]) -> None:
    redactor = Redactor(values, shortest=1)
    assert "".join(redactor.in_pieces(pieces)) == redactor.text("".join(pieces))


@given(st.lists(st.integers(min_value=0, max_value=60), max_size=6))
def test_a_value_that_lies_in_several_pieces_is_blanked_and_nothing_else(cuts: list[int]) -> None:
    text = "a key is s3cret-of-nine-lives\\u00e9 and s3cret-of-nine-livesé, s3cret-of"
    at = [0, *sorted(cuts), len(text)]
    pieces = [text[start:stop] for start, stop in pairwise(at)]
    whole = Redactor(["s3cret-of-nine-livesé"])
    assert (
        "".join(whole.in_pieces(pieces))
        == whole.text(text)
        == f"a key is {REDACTED} and {REDACTED}, {REDACTED}"
    )


def test_a_redactor_never_prints_what_it_hides() -> None:
    assert "s3cret" not in repr(Redactor(["s3cret"]))
