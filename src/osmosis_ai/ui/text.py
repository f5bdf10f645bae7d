"""Safe display of untrusted text: terminal sequences, highlighted code, and Markdown without HTML, links and images."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import cache
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

from markupsafe import Markup, escape

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.token import Token
    from pygments.formatter import Formatter
    from pygments.lexer import Lexer

# Zero width, directions (Unicode Standard Annex 9), separators of lines, and tags, which no screen shows.
_RANGES = (
    (0x7F, 0x9F),
    (0xAD, 0xAD),
    (0x61C, 0x61C),
    (0x180E, 0x180E),
    (0x200B, 0x200F),
    (0x2028, 0x202E),
    (0x2060, 0x206F),
    (0xD800, 0xDFFF),
    (0xFEFF, 0xFEFF),
    (0xFFF9, 0xFFFB),
    (0xE0000, 0xE007F),
)
_CONTROLS = {code: chr(0x2400 + code) for code in range(0x20) if chr(code) not in "\t\n"}
UNSEEN = {code: f"‹U+{code:04X}›" for first, last in _RANGES for code in range(first, last + 1)}
"""Marks of invisible and direction-changing characters other than C0 controls, for ``str.translate``."""
_MARKS = {**_CONTROLS, **UNSEEN}


@cache
def unseen_in_json() -> dict[int, str]:
    """Escape these characters as in JSON, so that a page contains exact JSON."""
    return {code: json.dumps(chr(code))[1:-1].replace("\x7f", "\\u007f") for code in UNSEEN}


def visible(text: str) -> str:
    """Return text with invisible and direction-changing characters as marks."""
    # Two passes of C over the text; few texts need the second.
    shown = text.replace("\r\n", "\n")
    return shown if shown.isascii() and shown.isprintable() else shown.translate(_MARKS)


# After an 8-bit introducer: the preceding character is not part of a multi-byte letter.
_ALONE = r"(?<![\x80-\xff].)"
_SEQUENCE = re.compile(
    rf"(?:\x1b\[|\x9b{_ALONE}(?=[0-?]+[@-~]))(?P<parameters>[0-?]*)[ -/]*(?P<final>[@-~])"
    r"|\x1b[\]PX^_][^\x07\x1b\x9c\n]*(?:\x07|\x1b\\|\x9c)?|\x1b[ -/]*[0-~]"
    # A sequence ends before the next one begins; otherwise, many unterminated ones would each be read to the line's end.
    rf"|(?:\x9d{_ALONE}[0-9]+;|\x90{_ALONE}[0-?]*[ -/]*[@-~])[^\x07\x1b\x90\x9b-\x9d\n]*(?:\x07|\x1b\\|\x9c)"
)
_WORDS = {"1": "ansi-bold", "3": "ansi-italic", "4": "ansi-underlined"}
_ENDS = {"22": "ansi-bold", "23": "ansi-italic", "24": "ansi-underlined"}


class CleanText(NamedTuple):
    """Text without sequences, and the number of those that were not colours."""

    text: str
    removed: int


def without_sequences(text: str) -> CleanText:
    removed = sum(not _is_colour(found) for found in _SEQUENCE.finditer(text))
    return CleanText(_SEQUENCE.sub("", text), removed)


def plain(text: str) -> str:
    """Return text that is safe in any terminal: no sequences, invisible characters as marks."""
    return visible(without_sequences(text).text)


def removed_words(removed: int) -> str:
    return f"{removed:,} terminal sequence{'s' * (removed != 1)} removed" if removed else ""


def told_without_sequences(text: str) -> str:
    left, removed = without_sequences(text)
    return f"{left} ({removed_words(removed)})" if removed else left


def removed_remark(removed: int) -> Markup:
    return Markup('<span class="removed">{}</span>').format(removed_words(removed)) if removed else Markup("")


def ansi(text: str, *, coloured: bool = True) -> Markup:
    """Return HTML with colours as classes, or without, and a note about removed sequences."""
    parts: list[str] = []
    style: dict[str, None] = {}
    end = removed = 0
    for found in _SEQUENCE.finditer(text):
        parts.append(_span(text[end : found.start()], style))
        end = found.end()
        if not _is_colour(found):
            removed += 1
        elif coloured:
            _restyle(style, found["parameters"])
    parts.append(_span(text[end:], style))
    return Markup("".join(parts)) + removed_remark(removed)


def _is_colour(found: re.Match[str]) -> bool:
    return found["final"] == "m" and found["parameters"][:1] not in ("<", "=", ">", "?")


def _span(text: str, style: dict[str, None]) -> str:
    shown = escape(visible(text))
    return f'<span class="{" ".join(style)}">{shown}</span>' if text and style else str(shown)


def _restyle(style: dict[str, None], parameters: str) -> None:
    """Apply SGR codes to ``style`` (an ordered set of classes); backgrounds are ignored."""
    given = iter(re.split("[;:]", parameters))
    for code in given:
        if code.lstrip("0") == "":
            style.clear()
        elif code in _WORDS:
            style[_WORDS[code]] = None
        elif code in _ENDS:
            style.pop(_ENDS[code], None)
        elif code in ("38", "48"):
            form = next(given, "")
            colour = _extended(form, list(islice(given, {"5": 1, "2": 3}.get(form, 0))))
            if code == "38":
                _recolour(style, colour)
        elif re.fullmatch("[39][0-7]|39", code):
            _recolour(style, int(code[1]) + 8 * (code[0] == "9") if code != "39" else None)


def _recolour(style: dict[str, None], colour: int | None) -> None:
    for known in [each for each in style if each[5:].isdigit()]:
        del style[known]
    if colour is not None:
        style[f"ansi-{colour}"] = None


def _extended(form: str, parameters: list[str]) -> int | None:
    """Return the nearest of 16 colours for a 256-colour (form 5) or 24-bit (form 2) code; None if invalid."""
    numbers = [int(each) if re.fullmatch("[0-9]{1,3}", each) else 0 for each in parameters]
    if form == "2" and len(numbers) == 3:
        return _nearest(*numbers)
    if form != "5" or not numbers:
        return None
    index = numbers[0]
    if index < 16:
        return index
    if index >= 232:
        return _nearest(*[8 + 10 * (index - 232)] * 3)
    return _nearest(*(51 * ((index - 16) // place % 6) for place in (36, 6, 1)))


def _nearest(red: int, green: int, blue: int) -> int:
    most = max(red, green, blue)
    if most < 64:
        return 0
    bits = sum((each * 2 > most) << place for place, each in enumerate((red, green, blue)))
    return bits + (8 if most > 191 else 0)


MOST_JSON_CHARACTERS = 100_000
"""Longer JSON is not highlighted: the lexer reads about 1 MB/s."""
_MOST_OF_OTHERS = 20_000
"""Limit for other languages, whose lexers may take quadratic time."""

# Only common languages: a lexer applies many regular expressions to hostile text. Pygments' lexers for YAML and
# TypeScript need more than a minute for 100,000 malicious characters.
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

    # Pygments always ends the last line.
    made = highlight(shown, *_lexer_and_formatter(name))
    return Markup(made if shown.endswith("\n") else made.removesuffix("\n"))


@cache
def _lexer_and_formatter(name: str) -> tuple[Lexer, Formatter]:
    from pygments.formatters import HtmlFormatter
    from pygments.lexers import get_lexer_by_name

    lexer = get_lexer_by_name(name, stripnl=False, ensurenl=False)
    return lexer, HtmlFormatter(nowrap=True, classprefix="c-")


MOST_CHARACTERS = 65_536
# The parser matches each opening bracket against the rest of the text: 1,000 brackets take 0.1 s.
_MOST_BRACKETS = 1_000
_DEEPEST = 20
_COPY = '<button type="button" class="copy" hidden>Copy</button>'


def markdown(text: str) -> Markup:
    """Render CommonMark with tables as HTML, with text elements and our own classes only."""
    left, removed = without_sequences(text)
    shown, parser = visible(left), _parser()
    takes_long = len(shown) > MOST_CHARACTERS or shown.count("[") > _MOST_BRACKETS
    tokens = [] if takes_long else parser.parse(shown)
    # The parser drops deeper tokens, so they would not be shown.
    if takes_long or any(token.level >= _DEEPEST - 2 for token in tokens):
        drawn = Markup('<div class="written">{}</div>').format(shown)
    else:
        # Apply visible again: the parser has decoded escapes in addresses.
        drawn = Markup(visible(parser.renderer.render(tokens, parser.options, {})))
    return drawn + removed_remark(removed)


@cache
def _parser() -> MarkdownIt:
    from markdown_it import MarkdownIt

    parser = MarkdownIt("commonmark", {"html": False, "maxNesting": _DEEPEST})
    # Both would hide text: reference definitions are not shown, and entities are shown decoded.
    parser.enable(["table", "strikethrough"]).disable(["reference", "entity"])
    # Addresses are shown as text, so no address needs to be refused or encoded.
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
    # Omit the ``style`` that aligns a column: the content security policy forbids it.
    "th_open": lambda *_: '<th scope="col">',
    "td_open": lambda *_: "<td>",
}
