"""Text of a page, found by CSS class."""

from __future__ import annotations

from html.parser import HTMLParser

_VOID = {"meta", "link", "input", "br", "wbr", "hr", "img"}


class _Texts(HTMLParser):
    """Collects the text of every element of a class."""

    def __init__(self, name: str) -> None:
        super().__init__(convert_charrefs=True)
        self._name = name
        self._depth = 0
        self.texts: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if self._depth:
            self._depth += tag not in _VOID
        elif self._name in (dict(attrs).get("class") or "").split():
            self._depth = 1
            self.texts.append("")

    def handle_endtag(self, tag: str) -> None:
        if self._depth:
            self._depth -= 1

    def handle_data(self, data: str) -> None:
        if self._depth:
            self.texts[-1] += data


def text_by_class(html: str, name: str) -> list[str]:
    """Return the text of each element of a class, in order."""
    parser = _Texts(name)
    parser.feed(html)
    parser.close()
    return parser.texts
