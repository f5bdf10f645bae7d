"""A client of the viewer's pages, without a browser or a server, and the text of a page."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import TYPE_CHECKING

from osmosis_ai.ui.pages import ShellView
from osmosis_ai.viewer.access import Viewing

if TYPE_CHECKING:
    from httpx import Response
    from starlette.testclient import TestClient

    from osmosis_ai.viewer.source import RunSource

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)


def visitor(source: RunSource, *, root: str = "") -> TestClient:
    """Return a client of the pages of ``source``."""
    from fastapi import FastAPI
    from starlette.testclient import TestClient

    from osmosis_ai.viewer.routes import viewer_router

    app = FastAPI()
    app.include_router(
        viewer_router(lambda: Viewing(source, ShellView(), root=root, is_local=not root)), prefix=root
    )
    return TestClient(app)


def page_text(reply: Response, *, status: int = 200) -> str:
    """Return a page's HTML after checking its status and security headers."""
    assert reply.status_code == status, reply.text
    assert reply.headers["content-security-policy"] == POLICY
    assert reply.headers["cache-control"] == "private, no-cache"
    assert reply.headers["x-content-type-options"] == "nosniff"
    assert "style=" not in reply.text and "onload" not in reply.text
    return reply.text


def page_of(source: RunSource, path: str, *, status: int = 200, root: str = "") -> str:
    """Return a page of ``source``, checked like :func:`page_text`."""
    return page_text(visitor(source, root=root).get(path), status=status)


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
