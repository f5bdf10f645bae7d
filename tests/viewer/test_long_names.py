"""Names of 300 characters on every page and in the report."""

from __future__ import annotations

import io
from html import unescape
from urllib.parse import quote

import pytest

from osmosis_ai.viewer.report import RunReportOptions, write_run_report
from osmosis_ai.viewer.source import RunDetail
from tests.viewer.browsing import gzipped, page_text, visitor
from tests.viewer.fake_source import FakeSource, a_run, a_sample

ONE_WORD, WORDS, WIDE = "n" * 300, "läufe ✓ " * 37 + "ende", "名" * 300


def source(name: str) -> FakeSource:
    """Return a run of that name, and of a model, a dataset, a rollout and a config of such names."""
    entry = a_run(name, model=name, dataset=name, rollout=name, config=name, person=name)
    detail = RunDetail(entry, facts=[("Model", name), ("Dataset", name)])
    said = b'{"steps": [{"source": "agent", "message": "42"}]}'
    return FakeSource(
        [entry, a_run("short")],
        {name: detail},
        {name: [a_sample(0), a_sample(1)]},
        conversations={(name, 0, 0): said},
        files={(name, 0, 0): {f"{name[:80]}.txt": b"kept"}},
    )


@pytest.mark.parametrize("name", [ONE_WORD, WORDS, WIDE], ids=["one word", "words", "wide"])
@pytest.mark.parametrize("below", ["", "/log", "/samples", "/samples?group=row", "/samples/0.0"])
def test_a_page_has_the_whole_name(name: str, below: str) -> None:
    assert len(name) == 300
    text = page_text(visitor(source(name)).get(f"/evals/{quote(name)}{below}"))
    assert name in unescape(text) and gzipped(text) < 100_000


@pytest.mark.parametrize("name", [ONE_WORD, WORDS, WIDE], ids=["one word", "words", "wide"])
def test_the_list_finds_it_and_leads_to_it(name: str) -> None:
    pages = visitor(source(name))
    text = page_text(pages.get("/evals", params={"q": name, "model": name}))
    assert name in unescape(text) and f'href="/evals/{quote(name)}"' in text and "short" not in text
    missing = page_text(pages.get(f"/evals/{quote(name[:-1])}x"), status=404)
    assert f'href="/evals/{quote(name)}"' in missing


@pytest.mark.parametrize("name", [ONE_WORD, WORDS, WIDE], ids=["one word", "words", "wide"])
def test_the_report_has_it(name: str) -> None:
    written = io.BytesIO()
    write_run_report(written, source(name), name, RunReportOptions())
    page = unescape(written.getvalue().decode())
    assert f"<h1>{name}</h1>" in page and page.count(name) >= 3
