from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from osmosis_ai.api.redaction import REDACTED, ReplyRedactor


def test_the_longer_value_goes_first_so_that_nothing_of_it_is_left() -> None:
    assert ReplyRedactor(["abc", "abcdef"]).text("x abcdef y abc z") == f"x {REDACTED} y {REDACTED} z"


def test_a_value_is_found_as_json_and_urls_spell_it() -> None:
    hidden = ReplyRedactor(['pä"ss/word'])
    for spelt in ('pä"ss/word', 'pä\\"ss/word', 'p\\u00e4\\"ss/word', "p%C3%A4%22ss%2Fword"):
        assert hidden.text(f"<{spelt}>") == f"<{REDACTED}>"


def test_a_tree_is_searched_everywhere_and_keys_that_name_a_secret_hide_what_they_hold() -> None:
    tree = {
        "error": "bad s3cret",
        "value": "other",
        "s3cret": [1, {"secret_value": 5, "note": None}],
        "ok": True,
    }
    assert ReplyRedactor(["s3cret", ""]).tree(tree) == {
        "error": f"bad {REDACTED}",
        "value": REDACTED,
        REDACTED: [1, {"secret_value": REDACTED, "note": None}],
        "ok": True,
    }


@given(st.lists(st.text("abcXYZ", min_size=1), min_size=1, max_size=5), st.text("abcXYZ"))
def test_no_value_is_ever_left(values: list[str], text: str) -> None:
    left = ReplyRedactor(values).text(text).replace(REDACTED, "|")
    assert not any(value in left for value in values)


def test_its_own_repr_tells_nothing() -> None:
    assert "s3cret" not in repr(ReplyRedactor(["s3cret"]))
