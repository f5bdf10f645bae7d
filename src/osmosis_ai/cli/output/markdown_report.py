"""What a command decided, as a comment of a pull request: the verdict first, then the tables, then what is folded away."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import quote

from osmosis_ai.cli.output.plain import cell_text
from osmosis_ai.cli.output.results import Cell, Column, Table, Text

MOST_CHARACTERS = 60_000
"""GitHub refuses a comment of more than 65,536 characters; what a job adds has room."""

_LONGEST_TEXT, _LONGEST_CELL, _ROOM_TO_TELL = 2_000, 300, 400
_ZERO_WIDTH_SPACE = "&#8203;"
_SPECIAL = re.compile(
    r"""
    [<>"'`|\\*\[\]$^]                  # HTML, code, tables, emphasis, links, formulas
    | (?<![^\W_])_ | _(?![^\W_])       # underscores but those within a word: pass_rate
    | (?P<reference>
        [&~@\#!%](?=\w)                # mentions, issues, merge requests, labels, epics
        | :(?=/) | /(?=/)              # https://
        | (?<=\bwww)\.                 # www.
        | (?<=\bgh)-(?=\d)             # GH-12
      )
    | [&~@\#:](?=\S)                   # mailto:, :tada:
    """,
    re.VERBOSE | re.IGNORECASE,
)
_INVISIBLE = {"Cc", "Cf", "Cs", "Zl", "Zp"}


@dataclass(frozen=True, slots=True)
class DecisionDocument:
    """A decision to be read by people who did not run the command."""

    title: str
    marker: str
    verdict: str
    notes: Sequence[str] = ()
    blocks: Sequence[Table | Text] = ()
    details: Sequence[Table | Text] = ()


def markdown_of(document: DecisionDocument, *, most: int = MOST_CHARACTERS) -> str:
    """Return the document in GitHub's Markdown, which GitLab reads too, of at most ``most`` characters."""
    page = _Page(most - _ROOM_TO_TELL)
    page.add(f"<!-- osmosis:{_marker(document.marker)} -->\n### {_paragraph(document.title)}\n", of="titles")
    page.add(f"**{_paragraph(document.verdict)}**\n", of="verdicts")
    for note in document.notes:
        page.add(f"> {_paragraph(note)}\n", of="notes")
    for block in document.blocks:
        page.add_block(block)
    for block in document.details:
        page.add_block(block, folded=True)
    return page.text()


def escaped(text: str, *, longest: int = _LONGEST_TEXT) -> str:
    """Return ``text`` so that Markdown and HTML show it as it is, on one line; what nobody would see is spelled out."""
    flat = text if text.isprintable() else _spelled_out(text)
    return _SPECIAL.sub(_reference, _cut(flat, longest))


class _Page:
    """Markdown that never grows beyond its room, and knows what it had to leave out."""

    def __init__(self, room: int) -> None:
        self._room = room
        self._parts: list[str] = []
        self._left_out: Counter[str] = Counter()

    def add(self, part: str, *, of: str) -> bool:
        """Add a part, or count it among what is left ``of``."""
        if len(part) + 1 > self._room:
            self._left_out[of] += 1
            return False
        self._parts.append(part)
        self._room -= len(part) + 1
        return True

    def add_block(self, block: Table | Text, *, folded: bool = False) -> None:
        """Add a block, a table as far as there is room."""
        before, after = _around(block.title, folded)
        head = [*before, *(_table_head(block) if isinstance(block, Table) else ())]
        self._room -= len(after) + 1
        if not self.add("\n".join(head), of="sections"):
            return
        if isinstance(block, Text):
            self.add(_paragraph(block.text), of="paragraphs")
        else:
            for row in block.rows:
                self.add(_line(row), of="rows")
            if block.note:
                self.add(f"\n{_paragraph(block.note)}", of="paragraphs")
        self._parts.append(after)

    def text(self) -> str:
        """Return all of it, with the sentence about what was cut."""
        if self._left_out:
            told = ", ".join(f"{count:,} {what}" for what, count in self._left_out.items())
            self._parts.append(f"Left out, to fit into a comment: {told}. `--json` gives all of it.\n")
        return "\n".join(self._parts)


def _around(title: str | None, folded: bool) -> tuple[list[str], str]:
    shown = escaped(title or "", longest=_LONGEST_CELL)
    if folded:
        return ["<details>", f"<summary>{shown}</summary>", ""], "\n</details>\n"
    return ([f"#### {shown}", ""] if title else []), ""


def _table_head(table: Table) -> list[str]:
    columns = [each if isinstance(each, Column) else Column(each) for each in table.columns]
    rules = ["---:" if column.right else "---" for column in columns]
    return [_line([column.heading for column in columns]), f"| {' | '.join(rules)} |"]


def _line(cells: Sequence[Cell]) -> str:
    shown = (escaped(cell_text(cell).strip(), longest=_LONGEST_CELL) for cell in cells)
    return f"| {' | '.join(shown)} |"


def _paragraph(text: str) -> str:
    """Return text that may begin a line: no list, no heading, no indented code, no `/close`."""
    shown = escaped(text.strip())
    if shown and not shown[0].isalpha() and shown[0] != "&":
        return f"&#{ord(shown[0])};{shown[1:]}"
    return shown


def _reference(match: re.Match[str]) -> str:
    entity = f"&#{ord(match[0])};"
    return entity + _ZERO_WIDTH_SPACE if match["reference"] else entity


def _spelled_out(text: str) -> str:
    flat = re.sub(r"[\t\r\n]+", " ", text)
    return "".join(_visible(character) for character in flat)


def _visible(character: str) -> str:
    if unicodedata.category(character) not in _INVISIBLE:
        return character
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _cut(text: str, longest: int) -> str:
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def _marker(text: str) -> str:
    # An HTML comment ends at `-->`, and may not hold `--`.
    return quote(_cut(text, _LONGEST_CELL), safe=":/@+ ", errors="replace").replace("--", "%2D%2D")
