"""Syntax highlighting, and Markdown without HTML, links and images."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from markupsafe import Markup, escape

from osmosis_ai.ui.text import removed_remark, visible, without_sequences

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.token import Token
    from pygments.formatter import Formatter
    from pygments.lexer import Lexer


MOST_JSON_CHARACTERS = 100_000
"""Longer JSON is not highlighted: the lexer reads about 1 MB/s."""
_MOST_OF_OTHERS = 20_000
"""Limit for other languages, whose lexers may take quadratic time."""

# Those that people meet, and no others: a lexer is some hundred regular expressions that see hostile text. Pygments'
# for YAML and TypeScript take more than a minute for 100,000 characters that are chosen for it.
_LEXERS = {
    *("json", "python", "py", "bash", "sh", "shell", "sql", "toml"),
    *("javascript", "js", "html", "xml", "css", "diff"),
}
_TAKEN_FOR = {"jsonl": "json", "typescript": "javascript", "ts": "javascript", "traceback": "pytb"}


def code(text: str, language: str = "") -> Markup:
    """Return highlighted code as spans with ``c-`` classes; the text is unchanged."""
    shown = visible(text)
    given = language.strip().lower()
    name = given if given in _LEXERS else _TAKEN_FOR.get(given)
    if name is None or len(shown) > (MOST_JSON_CHARACTERS if name == "json" else _MOST_OF_OTHERS):
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


MOST_CHARACTERS = 65_536
# A parser tries an opening bracket against all that follows it: a thousand of them take a tenth of a second.
_MOST_BRACKETS = 1_000
_DEEPEST = 20
_COPY = '<button type="button" class="copy" hidden>Copy</button>'


def markdown(text: str) -> Markup:
    """Render CommonMark with tables as HTML, with text elements and our own classes only."""
    left, removed = without_sequences(text)
    shown, parser = visible(left), _parser()
    takes_long = len(shown) > MOST_CHARACTERS or shown.count("[") > _MOST_BRACKETS
    tokens = [] if takes_long else parser.parse(shown)
    # What lies deeper is not parsed, and would not be shown.
    if takes_long or any(token.level >= _DEEPEST - 2 for token in tokens):
        drawn = Markup('<div class="written">{}</div>').format(shown)
    else:
        # Once more, because what is escaped in addresses is resolved by now.
        drawn = Markup(visible(parser.renderer.render(tokens, parser.options, {})))
    return drawn + removed_remark(removed)


@lru_cache
def _parser() -> MarkdownIt:
    from markdown_it import MarkdownIt

    parser = MarkdownIt("commonmark", {"html": False, "maxNesting": _DEEPEST})
    # A definition of a reference is not shown, and an entity not as it was written: both hide what was said.
    parser.enable(["table", "strikethrough"]).disable(["reference", "entity"])
    # Every address is shown as text: none has to be refused, none to be encoded.
    parser.validateLink = lambda _: True  # type: ignore[method-assign, assignment]
    parser.normalizeLink = lambda url: url  # type: ignore[method-assign]
    for kind, rule in _RULES.items():
        parser.add_render_rule(kind, rule)
    return parser


def _link_close(_: Any, tokens: Sequence[Token], place: int, *__: Any) -> str:
    depth = 0
    for token in reversed(tokens[: place + 1]):
        depth += {"link_close": 1, "link_open": -1}.get(token.type, 0)
        if not depth:
            return f"</span>{_address(token, 'href')}"
    return "</span>"


def _image(_: Any, tokens: Sequence[Token], place: int, *__: Any) -> str:
    return f"[image: {escape(tokens[place].content)}]{_address(tokens[place], 'src')}"


def _address(token: Token, name: str) -> str:
    title = token.attrs.get("title")
    said = f"{token.attrs.get(name, '')}" + (f" ({title})" if title else "")
    return f' <span class="address"><code>{escape(said)}</code>{_COPY}</span>'


def _block(_: Any, tokens: Sequence[Token], place: int, *__: Any) -> str:
    token = tokens[place]
    language = f'<span class="quiet">{escape(token.info.strip())}</span>' if token.info.strip() else ""
    drawn = code(token.content, (token.info.split() or [""])[0])
    return f'<div class="block">{language}<pre><code>{drawn}</code></pre>{_COPY}</div>\n'


def _heading(_: Any, tokens: Sequence[Token], place: int, *__: Any) -> str:
    """Return a heading one level below the page's ``h1``."""
    token = tokens[place]
    name = f"h{min(int(token.tag[1]) + 3, 6)}"
    return f"<{name}>" if token.nesting > 0 else f"</{name}>\n"


def _list(_: Any, tokens: Sequence[Token], place: int, *__: Any) -> str:
    start = tokens[place].attrs.get("start")
    return "<ol>\n" if start is None else f'<ol start="{int(start)}">\n'


_RULES = {
    "link_open": lambda *_: '<span class="link">',
    "link_close": _link_close,
    "image": _image,
    "fence": _block,
    "code_block": _block,
    "heading_open": _heading,
    "heading_close": _heading,
    "ordered_list_open": _list,
    # Without the ``style`` that aligns a column: the policy lets none in.
    "th_open": lambda *_: '<th scope="col">',
    "td_open": lambda *_: "<td>",
}
