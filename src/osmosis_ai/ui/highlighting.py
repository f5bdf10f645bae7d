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
"""Longer JSON is shown without colours: its lexer reads about a megabyte a second."""
_MOST_OF_OTHERS = 20_000
"""Of other languages: their lexers are regular expressions, whose time may grow with the square of the text."""

# Those that people meet, and no others: a lexer is some hundred regular expressions that see hostile text. Pygments'
# for YAML and TypeScript take more than a minute for 100,000 characters that are chosen for it.
_LEXERS = {
    *("json", "python", "py", "bash", "sh", "shell", "sql", "toml"),
    *("javascript", "js", "html", "xml", "css", "diff"),
}
_TAKEN_FOR = {"jsonl": "json", "typescript": "javascript", "ts": "javascript", "traceback": "pytb"}


def code(text: str, language: str = "") -> Markup:
    """Return code to stand in a ``pre``: spans whose classes begin with ``c-``; its text stays as it is."""
    shown = visible(text)
    given = language.strip().lower()
    name = given if given in _LEXERS else _TAKEN_FOR.get(given)
    if name is None or len(shown) > (MOST_CHARACTERS if name == "json" else _MOST_OF_OTHERS):
        return escape(shown)
    from pygments import highlight

    # It ends the last line, whether it had an end or not.
    made = highlight(shown, *_lexer_and_formatter(name))
    return Markup(made if shown.endswith("\n") else made.removesuffix("\n"))


@lru_cache
def _lexer_and_formatter(name: str) -> tuple[Lexer, Formatter]:
    from pygments.formatters import HtmlFormatter
    from pygments.lexers import get_lexer_by_name

    lexer = get_lexer_by_name(name, stripnl=False, ensurenl=False)
    return lexer, HtmlFormatter(nowrap=True, classprefix="c-")
