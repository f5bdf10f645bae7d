"""The sentences of the documentation are short."""

from __future__ import annotations

import re
from pathlib import Path
from statistics import quantiles

REPOSITORY = Path(__file__).parents[2]
PAGES = [
    *(REPOSITORY / name for name in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md")),
    *sorted((REPOSITORY / "docs").rglob("*.md")),
]


def prose(page: Path) -> str:
    """Return the text of a page without code, comments and the targets of links."""
    text = re.sub(
        r"^```.*?^```$|<!--.*?-->", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL
    )
    return re.sub(r"\]\([^)]*\)", "]", text)


def sentences(page: Path) -> list[str]:
    """Return the sentences of paragraphs, list items and table cells."""
    found = []
    for block in re.split(r"\n\s*\n|\n(?=\s*[-*|#]|\s*\d+\. )", prose(page)):
        cells = block.split("|") if block.lstrip().startswith("|") else [block]
        for cell in cells:
            found += re.split(r"(?<=[.!?])\s+", " ".join(cell.split()))
    return [sentence for sentence in found if sentence]


def test_sentences_are_short() -> None:
    lengths = {
        f"{page.name}: {sentence}": len(re.findall(r"[\w'’`/.-]*\w[\w'’`/.-]*", sentence))
        for page in PAGES
        # The pages of commands are made of the texts of their options.
        if page.parent.name != "cli"
        for sentence in sentences(page)
    }
    assert [text for text, length in lengths.items() if length > 40] == []
    # Cells of tables are mostly names.
    in_full = [length for text, length in lengths.items() if text.endswith((".", ":", "?", "!"))]
    assert quantiles(in_full, n=10)[-1] <= 25
