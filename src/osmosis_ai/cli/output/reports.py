"""Files of decisions: a Markdown report, a JUnit file, a page."""

from __future__ import annotations

import os
import re
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple
from urllib.parse import quote

import typer

from osmosis_ai.cli.output.context import current
from osmosis_ai.cli.output.formats import shortened, shown_path
from osmosis_ai.cli.output.results import Cell, Column, Table, Text, cell_text
from osmosis_ai.errors import OsmosisError
from osmosis_ai.files import expanded, replacing_or_streaming, require_writable

if TYPE_CHECKING:
    from osmosis_ai.services.report_files import ReportFile
    from osmosis_ai.viewer.local_runs import RunKind


MOST_CHARACTERS = 60_000
"""GitHub refuses a comment of more than 65,536 characters; what a job adds has room."""

_LONGEST_TEXT, _LONGEST_CELL, _ROOM_TO_TELL = 2_000, 300, 400
_ZERO_WIDTH_SPACE = "&#8203;"
_SPECIAL = r"""
    [<>"'`|\\*\[\]$^]                  # HTML, code, tables, emphasis, links, formulas
    | (?<![^\W_])_ | _(?![^\W_])       # underscores but those within a word: pass_rate
    | (?P<reference>
        [&~@\#!%](?=\w)                # mentions, issues, merge requests, labels, epics
        | :(?=/) | /(?=/)              # https://
        | (?<=\bwww)\.                 # www.
        | (?<=\bgh)-(?=\d)             # GH-12
      )
    | [&~@\#:](?=\S)                   # mailto:, :tada:
    """
_INVISIBLE = {"Cc", "Cf", "Cs", "Zl", "Zp"}


class DecisionDocument(NamedTuple):
    """A decision to be read by people who did not run the command."""

    title: str
    marker: str
    verdict: str
    notes: Sequence[str] = ()
    blocks: Sequence[Table | Text] = ()
    details: Sequence[Table | Text] = ()


def markdown_of(document: DecisionDocument) -> str:
    """Return the document in GitHub's Markdown, which GitLab reads too, of at most ``MOST_CHARACTERS``."""
    page = _Page(MOST_CHARACTERS - _ROOM_TO_TELL)
    page.add(f"<!-- osmosis:{_marker(document.marker)} -->\n### {_paragraph(document.title)}\n", of="titles")
    page.add(f"**{_paragraph(document.verdict)}**\n", of="verdicts")
    for note in document.notes:
        page.add(f"> {_paragraph(note)}\n", of="notes")
    for block in document.blocks:
        page.add_block(block)
    for block in document.details:
        page.add_block(block, folded=True)
    return page.text()


def _escaped(text: str, *, longest: int = _LONGEST_TEXT) -> str:
    """Escape ``text`` for one line of Markdown and HTML; invisible characters are spelled out."""
    flat = text
    if not text.isprintable():
        flat = "".join(map(_visible, re.sub(r"[\t\r\n]+", " ", text)))
    return re.sub(_SPECIAL, _reference, shortened(flat, longest), flags=re.VERBOSE | re.IGNORECASE)


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
        title = _escaped(block.title or "", longest=_LONGEST_CELL)
        head = [f"#### {title}", ""] if block.title else []
        after = ""
        if folded:
            head, after = ["<details>", f"<summary>{title}</summary>", ""], "\n</details>\n"
        if isinstance(block, Table):
            columns = [each if isinstance(each, Column) else Column(each) for each in block.columns]
            rules = ["---:" if column.right else "---" for column in columns]
            head += [_line([column.heading for column in columns]), f"| {' | '.join(rules)} |"]
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
        """Return the whole text, with a sentence that lists omitted parts."""
        if self._left_out:
            told = ", ".join(f"{count:,} {what}" for what, count in self._left_out.items())
            self._parts.append(f"Omitted, to fit into a comment: {told}. `--json` has everything.\n")
        return "\n".join(self._parts)


def _line(cells: Sequence[Cell]) -> str:
    shown = (_escaped(cell_text(cell).strip(), longest=_LONGEST_CELL) for cell in cells)
    return f"| {' | '.join(shown)} |"


def _paragraph(text: str) -> str:
    """Return text that may begin a line: no list, no heading, no indented code, no `/close`."""
    shown = _escaped(text.strip())
    if shown and not shown[0].isalpha() and shown[0] != "&":
        return f"&#{ord(shown[0])};{shown[1:]}"
    return shown


def _reference(match: re.Match[str]) -> str:
    entity = f"&#{ord(match[0])};"
    return entity + _ZERO_WIDTH_SPACE if match["reference"] else entity


def _visible(character: str) -> str:
    if unicodedata.category(character) not in _INVISIBLE:
        return character
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _marker(text: str) -> str:
    # An HTML comment ends at `-->`, and may not hold `--`.
    return quote(shortened(text, _LONGEST_CELL), safe=":/@+ ", errors="replace").replace("--", "%2D%2D")


Outcome = Literal["pass", "fail", "unclear"]
_ILLEGAL = "[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]"


class JunitCase(NamedTuple):
    """One rule."""

    name: str
    outcome: Outcome
    message: str = ""


def junit_of(suite: str, cases: Sequence[JunitCase]) -> bytes:
    """Return a test suite as UTF-8; characters that no XML may hold are left out."""
    from xml.etree import ElementTree

    counts = {
        "tests": len(cases),
        "failures": sum(case.outcome == "fail" for case in cases),
        "errors": 0,
        "skipped": sum(case.outcome == "unclear" for case in cases),
    }
    numbers = {key: str(count) for key, count in counts.items()}
    root = ElementTree.Element("testsuites", numbers)
    parent = ElementTree.SubElement(root, "testsuite", {"name": _legal(suite), **numbers})
    for case in cases:
        names = {"classname": _legal(suite), "name": _legal(case.name)}
        found, message = ElementTree.SubElement(parent, "testcase", names), _legal(case.message)
        if case.outcome == "fail":
            ElementTree.SubElement(found, "failure", {"message": message}).text = message
        elif case.outcome == "unclear":
            ElementTree.SubElement(found, "skipped", {"message": message}).text = message
        elif message:
            ElementTree.SubElement(found, "system-out").text = message
    ElementTree.indent(root)
    document: bytes = ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)
    return document + b"\n"


def _legal(text: str) -> str:
    """Return text without what is no character of XML 1.0 (section 2.2 of its specification)."""
    return re.sub(_ILLEGAL, "", text)


STEP_SUMMARY = "GITHUB_STEP_SUMMARY"


class DecisionFiles(NamedTuple):
    """The files to write in addition to the result."""

    markdown: Path | None = None
    junit: Path | None = None

    def check(self) -> DecisionFiles:
        """Return itself once every file can be written."""
        for option, path in (("--markdown", self.markdown), ("--junit", self.junit)):
            if path is not None:
                try:
                    require_writable(path)
                except OSError as error:
                    raise _unwritable(option, path, error) from None
        return self

    def write(self, document: DecisionDocument, cases: Sequence[JunitCase] = ()) -> None:
        """Write each file in one step; a step's summary that cannot be added to is only warned of."""
        if self.markdown is not None:
            text = markdown_of(document)
            _write("--markdown", self.markdown, text.encode("utf-8"))
            _add_to_step_summary(text)
        if self.junit is not None:
            _write("--junit", self.junit, junit_of(document.title, cases))


def _write(option: str, path: Path, data: bytes) -> None:
    try:
        with replacing_or_streaming(path, mode=0o644, durable=False) as out:
            out.write(data)
    except OSError as error:
        raise _unwritable(option, path, error) from None


def _unwritable(option: str, path: Path, error: OSError) -> OsmosisError:
    return OsmosisError(
        f"cannot write `{option} {path}`: {error.strerror or error}.",
        hint="name a file in a directory that you may write to",
    )


def _add_to_step_summary(text: str) -> None:
    path = os.environ.get(STEP_SUMMARY)
    if not path:
        return
    try:
        with Path(path).open("ab") as summary:
            summary.write(f"{text}\n".encode())
    except OSError as error:
        current().warn(f"the summary of this step (${STEP_SUMMARY}) cannot be written: {error.strerror}")


TRAINING_HOLDS = "curves, checkpoints, names, names of secrets", "the config, warnings and errors"
RUBRIC_HOLDS = (
    "scores, agreement, names of judges and files",
    "the rubric, the records and what the judges said of them",
)
"""Contents of reports by kind: always included, and included without ``--no-text``."""


def report_file(
    path: Path | None, *, overwrite: bool, no_text: bool, holds: Mapping[RunKind | None, tuple[str, str]]
) -> ReportFile | None:
    """Return the file of a report after checking that it can be written, and print what it will contain."""
    if path is None:
        require_report({"--no-text": no_text, "--force": overwrite})
        return None
    from osmosis_ai.services.report_files import ReportFile

    def announce(kind: RunKind | None) -> None:
        numbers, text = holds[kind]
        tell_what_goes_in(numbers, "" if no_text else text)

    file = ReportFile(expanded(path), overwrite, text=not no_text, announce=announce)
    file.check()
    return file


def require_report(given: Mapping[str, bool]) -> None:
    """Refuse options of a report where none was asked for: whether each was given, by its name."""
    if alone := [name for name, is_given in given.items() if is_given]:
        raise typer.BadParameter(f"{', '.join(alone)} needs --report FILE.html.")


def tell_what_goes_in(numbers: str, text: str) -> None:
    more = f"; {text} (without that with --no-text)" if text else ""
    current().note(f"What goes into the report: {numbers}{more}.")


def tell_written(report: ReportFile | None) -> dict[str, Any]:
    """Print the path of a report, and return its field of the JSON output."""
    if report is None:
        return {}
    current().note(f"Report: {shown_path(report.path)}")
    return {"report_path": str(report.path)}
