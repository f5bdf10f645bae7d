"""Rules as test cases, in the XML that every CI system shows: a rule that is met is a test that passes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal
from xml.etree import ElementTree

Outcome = Literal["pass", "fail", "unclear"]
_ILLEGAL = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@dataclass(frozen=True, slots=True)
class JunitCase:
    """One rule."""

    name: str
    outcome: Outcome
    message: str = ""


def junit_of(suite: str, cases: Sequence[JunitCase]) -> bytes:
    """Return a test suite as UTF-8; characters that no XML may hold are left out."""
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
        _add(parent, suite, case)
    ElementTree.indent(root)
    found: bytes = ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)
    return found + b"\n"


def _add(parent: ElementTree.Element, suite: str, case: JunitCase) -> None:
    found = ElementTree.SubElement(
        parent, "testcase", {"classname": _legal(suite), "name": _legal(case.name)}
    )
    message = _legal(case.message)
    if case.outcome == "fail":
        ElementTree.SubElement(found, "failure", {"message": message}).text = message
    elif case.outcome == "unclear":
        ElementTree.SubElement(found, "skipped", {"message": message}).text = message
    elif message:
        ElementTree.SubElement(found, "system-out").text = message


def _legal(text: str) -> str:
    """Return text without what is no character of XML 1.0 (section 2.2 of its specification)."""
    return _ILLEGAL.sub("", text)
