"""The shell and the macros: whole without script, nothing inline, nothing from elsewhere."""

from __future__ import annotations

import gzip
import re
from pathlib import Path

import pytest

from osmosis_ai.ui.assets import KIT, asset_name, assets
from osmosis_ai.ui.pages import templates
from osmosis_ai.ui.policy import PAGE_POLICY, artifact_headers, page_headers
from osmosis_ai.ui.shell import LiveChanges, NavItem, ShellView

HOSTILE = '"><script>{{ 7 * 7 }}</script>\u202e\x1b]0;x\x07</title>'

PAGE = """{% extends "shell.html" %}
{% from "macros.html" import facts, pager, badge, copy, command, empty, note, link %}
{% block title %}{{ said }}{% endblock %}
{% block content %}
{{ link(said, said) }}
{{ facts([(said, said)]) }}{{ badge(said) }}{{ copy(said) }}{{ command(said) }}{{ empty(said, said) }}{{ note(said) }}
{{ said | breakable }}{{ said | markdown }}{{ said | ansi }}{{ said | code("html") }}{{ said | moment }}{{ none | moment }}{{ 0.5 | percent }}
{% endblock %}"""


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("pages")
    (folder / "page.html").write_text(PAGE)
    shell = ShellView(
        nav=[NavItem(HOSTILE, "/evals", current=True)],
        user=HOSTILE,
        sign_out="/logout",
        csrf=HOSTILE,
        live=LiveChanges(HOSTILE, HOSTILE),
    )
    return (
        templates(folder)
        .get_template("page.html")
        .render(
            shell=shell,
            said=HOSTILE,
            crumbs=[NavItem(HOSTILE, "/")],
            problem=HOSTILE,
        )
    )


def test_hostile_text_is_text_wherever_a_page_shows_it(page: str) -> None:
    assert page.count("<script") == 1 and page.count("</title>") == 1 and "{{ 7 * 7 }}" in page
    assert "\u202e" not in page and "\x1b" not in page


def test_a_page_has_its_landmarks_and_nothing_inline(page: str) -> None:
    for there in (
        '<html lang="en"',
        'class="skip"',
        '<main id="main"',
        '<nav class="links"',
        'aria-live="polite"',
    ):
        assert page.count(there) == 1, there
    assert page.count("<h1>") == 1
    assert not re.search(r'\s(style|on\w+)="', re.sub(r'"[^"]*"', '""', page))
    assert set(re.findall(r"<script([^>]*)>(.*?)</script>", page)) == {
        (f' type="module" src="/assets/{asset_name("page.js")}"', "")
    }


def test_the_policy_is_the_one_that_pages_are_written_for() -> None:
    assert PAGE_POLICY == (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    )
    headers = page_headers()
    assert headers["Content-Security-Policy"] == PAGE_POLICY
    assert headers["X-Content-Type-Options"] == "nosniff" and headers["Referrer-Policy"] == "no-referrer"
    assert headers["Cache-Control"] == "private, no-cache"
    assert page_headers(keep=False)["Cache-Control"] == "no-store"
    leading = page_headers(form_leads_to="http://localhost:8976")["Content-Security-Policy"]
    assert "form-action 'self' http://localhost:8976;" in leading and "unsafe" not in leading


def test_an_artifact_is_a_download_whatever_it_is_called() -> None:
    headers = artifact_headers('a"\r\nX: y/é\ud800.html')
    assert (
        headers["Content-Disposition"] == "attachment; filename*=UTF-8''a%22%0D%0AX%3A%20y%2F%C3%A9%3F.html"
    )
    assert "sandbox" in headers["Content-Security-Policy"] and headers["X-Content-Type-Options"] == "nosniff"


def test_assets_are_small_named_by_digest_and_import_what_is_there() -> None:
    made = assets()
    styles = [asset for name, asset in made.items() if name.endswith(".css")]
    modules = [asset for name, asset in made.items() if name.endswith(".js")]
    assert len(styles) == 1 and len(styles[0].gzipped) < 15_000
    assert sum(len(asset.content) for asset in modules) < 40_000
    for asset in made.values():
        assert re.fullmatch(r"[a-z]+-[0-9a-f]{8}\.(css|js)", asset.name)
        text = asset.content.decode()
        assert set(re.findall(r'from "\./([^"]+)"', text)) <= made.keys()
        assert not re.search(r"https?://|@import|url\(", text)
        body, headers = asset.reply("br, gzip")
        assert gzip.decompress(body) == asset.content and headers["Content-Encoding"] == "gzip"
        assert "immutable" in headers["Cache-Control"]
        assert asset.reply("")[0] == asset.content


def test_no_module_writes_html() -> None:
    for file in Path(KIT / "modules").glob("*.js"):
        assert not re.search(
            r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", file.read_text("utf-8")
        )
