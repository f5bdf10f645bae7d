"""The kit under every page: contrast, escaping, policy."""

from __future__ import annotations

import json
import re
import unicodedata
from pathlib import Path

import pytest

from osmosis_ai.ui.assets import KIT
from osmosis_ai.ui.pages import templates
from osmosis_ai.ui.text import data_for_scripts, visible

TOKENS = {
    name: pair
    for name, *pair in re.findall(
        r"--([\w-]+): light-dark\((#\w{6}), (#\w{6})\);", (KIT / "tokens.css").read_text("utf-8")
    )
}
SERIES = [name for name in TOKENS if name.startswith("series-")]


def luminance(colour: str) -> float:
    """Return the relative luminance of WCAG 2.2."""
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    red, green, blue = (
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str, theme: int) -> float:
    """Return the contrast of two tokens by WCAG 2.2, from 1 to 21."""
    dark, light = sorted(luminance(TOKENS[name][theme]) for name in (one, other))
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_text_stands_out_from_what_it_stands_on(theme: int) -> None:
    grounds = {
        "text": ("ground", "raised", "bar"),
        "quiet": ("ground", "raised"),
        # What a button says that comes first.
        "ground": ("accent",),
        **dict.fromkeys(("accent", "good", "fair", "bad", "note", "magenta", "cyan"), ("ground", "raised")),
    }
    weak = {
        f"{name} on {ground}": round(contrast(name, ground, theme), 2)
        for name, found in grounds.items()
        for ground in found
        if contrast(name, ground, theme) < 4.5
    }
    assert weak == {}
    assert len(SERIES) == 7
    # What is drawn, and the edge of what takes input, needs less than what is read: WCAG 2.2, 1.4.11.
    assert {name for name in [*SERIES, "edge"] if contrast(name, "ground", theme) < 3} == set()


def test_templates_escape_and_mark_whatever_they_are_given(tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text('<p title="{{ said }}">{{ said }}</p>{{ said | breakable }}')
    said = '"><script>{{ 7 * 7 }}</script>\u202e\x1b]0;x\x07'
    page = templates(tmp_path).get_template("page.html").render(said=said)
    assert page.count("<") - page.count("<wbr>") == 2
    assert "{{ 7 * 7 }}" in page and page.count("‹U+202E›␛]0;x␇") == 3


def test_what_is_not_seen_is_shown() -> None:
    assert visible("one\r\ntwo\tthree") == "one\ntwo\tthree"
    assert visible("é 中 😀 \N{HEBREW LETTER ALEF}") == "é 中 😀 \N{HEBREW LETTER ALEF}"
    assert visible("a\u202eb\u200b\x00\x9b\ud800") == "a‹U+202E›b‹U+200B›␀‹U+009B›‹U+D800›"
    for code in [*range(0x11000), *range(0xE0000, 0xE1000)]:
        kind = unicodedata.category(chr(code))
        if kind in ("Cc", "Cs", "Zl", "Zp") and chr(code) not in "\t\n":
            assert visible(chr(code)) != chr(code), hex(code)
        if unicodedata.bidirectional(chr(code)) in (
            "LRE",
            "RLE",
            "PDF",
            "LRO",
            "RLO",
            "LRI",
            "RLI",
            "FSI",
            "PDI",
        ):
            assert visible(chr(code)) != chr(code), hex(code)


def test_data_for_a_script_begins_no_tag_and_says_the_same() -> None:
    value = {"</script>": ["<!--", "&amp;", "\u2028"]}
    assert not set("<>&\u2028") & set(data_for_scripts(value))
    assert json.loads(data_for_scripts(value)) == value
    with pytest.raises(ValueError):
        data_for_scripts(float("nan"))
