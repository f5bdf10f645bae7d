from __future__ import annotations

import sys
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from osmosis_ai.config.lines import KeyPath, key_lines

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

# Values whose text looks like anything but a value; several span lines.
VALUES = st.sampled_from(
    [
        "1",
        "true",
        '"# no comment"',
        "'[no.header]'",
        '"""\nfake = 1\n[fake]\n"""',
        "'''\n\n[[fake]]\nfake = '1'\n'''",
        '"""quotes "" inside \\""" and\nfake = 2"""',
        "[1, 2]",
        "[\n  1, # fake = 1\n\n  [2,\n 3],\n]",
        '[\n"""\n]\nfake = 3\n""",\n]',
        "{ inner = 1, deep.er = 2 }",
        "2024-01-01T00:00:00Z # fake = 4",
        '"\u2028fake = 5\x85"',
    ]
)
KEY_FORMS = st.sampled_from(
    ["k{}", '"k{} = x"', "'k{} # y'", '"k{}.z"', "k{}.sub.leaf", ' k{} . "sub" ', "\tk{}"]
)
FILLERS = st.sampled_from(["", "   ", "# fake = 6", "# [fake]", "\t# '''"])
HEADER_FORMS = st.sampled_from(["[t{}]", '[ t{} . "in.ner" ]', "  [t{}.a.b]  # [fake]", "['t{} ]']"])


@st.composite
def documents(draw: st.DrawFn) -> str:
    """A valid TOML document: tables, arrays of tables, and keys, in odd but legal spellings."""
    lines: list[str] = []
    serial = 0
    for block in range(draw(st.integers(1, 4))):
        if block:
            header = draw(HEADER_FORMS).format(serial)
            is_array = header.startswith("[t") and draw(st.booleans())
            lines.append(f"[{header}]" if is_array else header)
            if is_array and draw(st.booleans()):
                lines.append(f"[t{serial}.below]")
            serial += 1
        for _ in range(draw(st.integers(0, 4))):
            lines += draw(st.lists(FILLERS, max_size=2))
            lines.append(f"{draw(KEY_FORMS).format(serial)} = {draw(VALUES)}")
            serial += 1
    return draw(st.sampled_from(["\n", "\r\n"])).join("\n".join(lines).split("\n"))


def paths_of(value: Any, prefix: KeyPath = ()) -> set[KeyPath]:
    """Every path to a key in a parsed document; what is inside an array has none."""
    if not isinstance(value, dict):
        return set()
    found: set[KeyPath] = set()
    for key, inner in value.items():
        found |= {(*prefix, key)} | paths_of(inner, (*prefix, key))
    return found


def parsed_paths(lines: list[str]) -> set[KeyPath] | None:
    try:
        return paths_of(tomllib.loads("\n".join(lines)))
    except tomllib.TOMLDecodeError:
        return None


def first_line_of(path: KeyPath, lines: list[str]) -> int:
    """The line where ``path`` appears, by the parser alone: what stands before it lacks the path."""
    complete = [number for number in range(len(lines) + 1) if parsed_paths(lines[:number]) is not None]
    with_path = next(number for number in complete if path in (parsed_paths(lines[:number]) or ()))
    before = max(number for number in complete if number < with_path)
    return before + 1


@settings(max_examples=60, deadline=None)
@given(documents())
def test_a_line_that_is_given_is_the_one_where_the_parser_meets_the_key(text: str) -> None:
    lines = text.replace("\r\n", "\n").split("\n")
    everything = paths_of(tomllib.loads(text))
    found = key_lines(text)
    assert set(found) <= everything
    for path, number in found.items():
        assert number == first_line_of(path, lines), (path, number)


@settings(max_examples=60, deadline=None)
@given(documents())
def test_every_key_outside_of_arrays_of_tables_has_a_line(text: str) -> None:
    document = tomllib.loads(text)
    arrays = {
        key for key, value in document.items() if isinstance(value, list) and isinstance(value[0], dict)
    }
    expected = {path for path in paths_of(document) if path[0] not in arrays}
    assert expected == set(key_lines(text))


@settings(deadline=None)
@given(st.text(alphabet="ab=.[]{}\"'#\\ \t\n\r1,", max_size=60))
def test_any_text_at_all_is_taken(text: str) -> None:
    found = key_lines(text)
    count = len(text.replace("\r\n", "\n").split("\n"))
    assert all(1 <= number <= count for number in found.values())


def test_a_table_opened_later_has_the_line_of_its_own_header() -> None:
    assert key_lines("[a.b]\nx = 1\n\n[a]\ny = 2\n") == {
        ("a", "b"): 1,
        ("a", "b", "x"): 2,
        ("a",): 4,
        ("a", "y"): 5,
    }


def test_what_stands_before_a_mistake_keeps_its_lines() -> None:
    assert key_lines("[a]\nx = 1\ny = = 2\nz = 3\n") == {("a",): 1, ("a", "x"): 2}
