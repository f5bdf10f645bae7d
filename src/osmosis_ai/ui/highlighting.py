"""Code with its words in classes; without a lexer, or when it is long, it is text."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from markupsafe import Markup, escape

from osmosis_ai.ui.text import visible

if TYPE_CHECKING:
    from pygments.formatter import Formatter
    from pygments.lexer import Lexer

MOST_CHARACTERS = 100_000
"""Longer code is shown without colours: lexers read about a megabyte a second."""

# Those that people meet, and no others: a lexer is some hundred regular expressions that see hostile text.
_LEXERS = {
    "json": "json",
    "jsonl": "json",
    "python": "python",
    "py": "python",
    "bash": "bash",
    "sh": "bash",
    "shell": "bash",
    "sql": "sql",
    "toml": "toml",
    "yaml": "yaml",
    "javascript": "javascript",
    "js": "javascript",
    "typescript": "typescript",
    "ts": "typescript",
    "html": "html",
    "xml": "xml",
    "css": "css",
    "diff": "diff",
    "traceback": "pytb",
}


def code(text: str, language: str = "") -> Markup:
    """Return code to stand in a ``pre``: spans whose classes begin with ``c-``; its text stays as it is."""
    shown = visible(text)
    name = _LEXERS.get(language.strip().lower())
    if name is None or len(shown) > MOST_CHARACTERS:
        return escape(shown)
    from pygments import highlight

    # It ends the last line, whether it had an end or not.
    made = highlight(shown, _lexer(name), _formatter())
    return Markup(made if shown.endswith("\n") else made.removesuffix("\n"))


@lru_cache
def _lexer(name: str) -> Lexer:
    from pygments.lexers import get_lexer_by_name

    return get_lexer_by_name(name, stripnl=False, ensurenl=False)


@lru_cache
def _formatter() -> Formatter:
    from pygments.formatters import HtmlFormatter

    return HtmlFormatter(nowrap=True, classprefix="c-")
