"""The viewer in Debian's Chromium: it says nothing on the console, asks nobody else, fits, and works with keys alone."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from osmosis_ai.evaluation.metrics import RunScore
from osmosis_ai.viewer import serving as viewer_serving
from osmosis_ai.viewer.local_runs import RunKind
from osmosis_ai.viewer.source import RunDetail
from tests.browser import visits
from tests.browser.site import PAGES, a_site, served
from tests.browser.visits import NARROW, PATIENCE_MS, SEEN_OR_NOT, WIDE, Visit, look_at_pages
from tests.viewer.fake_source import FakeSource, a_run, a_sample
from tests.viewer.test_reports import comparison, judging, report, source, training

if TYPE_CHECKING:
    from playwright.sync_api import Browser


pytestmark = pytest.mark.e2e

# The others are made of the same parts: `make nightly` asks axe about each of them, in each window.
PAGES_OF_EACH_KIND = frozenset({"runs", "evaluation", "conversation"})


@pytest.fixture(scope="module")
def site() -> FakeSource:
    """What the browser looks at."""
    return a_site()


@pytest.fixture(scope="module")
def opened(browser: Browser, site: FakeSource) -> Iterator[tuple[str, Any]]:
    """Serve the viewer, and keep the cookie that its one-time address gave."""
    with served(site) as address:
        context = browser.new_context()
        page = context.new_page()
        page.goto(address)
        page.wait_for_url(lambda url: "/open" not in url, timeout=PATIENCE_MS)
        base = address.partition("/open")[0]
        yield base, context.storage_state()
        context.close()


def visit(browser: Browser, opened: tuple[str, Any], **settings: Any) -> Visit:
    return visits.visit(browser, *opened, **settings)


def look_at_every_page(browser: Browser, opened: tuple[str, Any], **settings: Any) -> None:
    thoroughly = PAGES_OF_EACH_KIND if settings.get("java_script_enabled", True) else frozenset[str]()
    look_at_pages(visit(browser, opened, **settings), PAGES, thoroughly=thoroughly)


@pytest.mark.parametrize(("width", "scheme"), [(WIDE, "light"), (NARROW, "dark")])
def test_every_page_is_sound_at_two_widths(
    browser: Browser, opened: tuple[str, Any], width: int, scheme: str
) -> None:
    look_at_every_page(browser, opened, viewport={"width": width, "height": 900}, color_scheme=scheme)


@pytest.mark.nightly
def test_every_page_is_there_without_script(browser: Browser, opened: tuple[str, Any]) -> None:
    look_at_every_page(browser, opened, viewport={"width": NARROW, "height": 800}, java_script_enabled=False)


def test_the_way_from_the_list_to_a_conversation_needs_keys_alone(
    browser: Browser, opened: tuple[str, Any]
) -> None:
    looking = visit(browser, opened, viewport={"width": WIDE, "height": 900})
    page = looking.page
    looking.open("/evals")
    page.keyboard.press("j")
    page.keyboard.press("j")
    assert looking.focused() == "new"
    page.keyboard.press("Enter")
    page.wait_for_url("**/evals/new")
    looking.open("/evals")
    page.keyboard.press("/")
    page.keyboard.type("new")
    page.keyboard.press("Enter")
    page.wait_for_url("**/evals?q=new")
    looking.open("/evals/new/samples")
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.type") == "search"
    page.keyboard.press("Escape")
    page.evaluate("document.activeElement.blur()")
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    page.wait_for_url("**/samples/5.0*")
    page.keyboard.press("n")
    page.wait_for_url("**/samples/6.0*")
    page.keyboard.press("p")
    page.wait_for_url("**/samples/5.0*")
    page.keyboard.press("j")
    assert page.evaluate("'step' in document.activeElement.dataset")
    assert looking.wrong == []
    page.context.close()


def test_the_theme_that_was_chosen_is_that_of_the_next_page(
    browser: Browser, opened: tuple[str, Any]
) -> None:
    looking = visit(browser, opened, color_scheme="light")
    page = looking.page
    looking.open("/")
    page.locator("#theme").click()
    looking.open("/evals")
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(20, 22, 27)"
    assert looking.wrong == []
    page.context.close()


# Live


def going_on(site: FakeSource, name: str, kind: RunKind = "eval") -> None:
    """Add a run that goes on."""
    site.entries = [each for each in site.entries if each.name != name]
    site.entries.append(a_run(name, kind, status="running", ended_at=None))
    site.listed[name] = []


def one_more_finished(site: FakeSource, name: str) -> None:
    """Let one more sample of a run finish."""
    finished = [*site.listed[name], a_sample(len(site.listed[name]))]
    run = next(each for each in site.entries if each.name == name)
    line = RunScore(pass_rate=1.0, low=0.5, high=1.0, scored=len(finished), planned=40)
    site.details[name] = RunDetail(replace(run, headline=line))
    site.listed[name] = finished


def test_a_finished_sample_is_on_the_page_by_itself_and_the_focus_stays(
    browser: Browser, opened: tuple[str, Any], site: FakeSource
) -> None:
    going_on(site, "growing")
    looking = visit(browser, opened)
    page = looking.page
    page.add_init_script(SEEN_OR_NOT)
    parts: list[str] = []
    page.on("request", lambda asked: parts.append(asked.url) if "x-live-part" in asked.headers else None)
    looking.open("/evals/growing")
    page.evaluate("window.mark = 'the page was not loaded again'")
    page.get_by_role("link", name="Scored").focus()
    assert parts == []
    for scored in (1, 2):
        one_more_finished(site, "growing")
        page.locator(".tile", has_text="Scored").filter(has_text=f"{scored}of 40 planned").wait_for()
        assert looking.focused().startswith("Scored")
    assert len(parts) == 2 and page.evaluate("window.mark")
    page.evaluate("window.seen(false)")
    one_more_finished(site, "growing")
    page.evaluate("window.seen(true)")
    page.locator(".tile", has_text="Scored").filter(has_text="3of 40 planned").wait_for()
    assert looking.wrong == []
    page.context.close()


@pytest.mark.parametrize("page", ["", "/samples/0.0"])
def test_a_page_of_a_run_that_is_deleted_says_so_and_keeps_what_it_shows(
    browser: Browser, opened: tuple[str, Any], site: FakeSource, page: str
) -> None:
    going_on(site, "passing")
    one_more_finished(site, "passing")
    site.conversations = {**site.conversations, ("passing", 0, 0): b'{"steps": []}'}
    looking = visit(browser, opened)
    looking.page.add_init_script(SEEN_OR_NOT)
    with looking.page.expect_response(lambda reply: "/changes" in reply.url):
        looking.open(f"/evals/passing{page}")
    heading = looking.page.locator("h1").text_content()
    one_more_finished(site, "passing")
    site.entries = [each for each in site.entries if each.name != "passing"]
    problem = looking.page.locator("main .problem[role=alert]")
    problem.wait_for()
    assert problem.text_content() == "This run no longer exists. Back to the list"
    assert looking.page.locator("h1").text_content() == heading
    assert not [each for each in looking.wrong if "404" not in each]
    problem.get_by_role("link").click()
    looking.page.wait_for_url("**/evals")
    looking.page.context.close()


def look_at_reports(browser: Browser, directory: Path, **settings: Any) -> None:
    made = {
        "evaluation": report(source()),
        "comparison": comparison(),
        "training": training(),
        "rubric": judging(),
    }
    for name, text in made.items():
        (directory / f"{name}.html").write_text(text)
    thoroughly = frozenset({"evaluation"}) if settings.get("java_script_enabled", True) else frozenset[str]()
    looking = visits.visit(browser, f"file://{directory}", **settings)
    look_at_pages(looking, {name: f"/{name}.html" for name in made}, thoroughly=thoroughly)


@pytest.mark.parametrize(("width", "script"), [(WIDE, True), (NARROW, False)])
def test_every_report_is_sound_at_two_widths(
    browser: Browser, tmp_path: Path, width: int, script: bool
) -> None:
    look_at_reports(browser, tmp_path, viewport={"width": width, "height": 800}, java_script_enabled=script)


def test_a_name_of_its_own_opens_once_and_its_cookie_is_no_other_s(
    browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[Any] = []

    @contextmanager
    def noted(serving: Any) -> Iterator[None]:
        started.append(serving)
        yield

    monkeypatch.setattr(viewer_serving, "name_leads_here", lambda _name: True)
    monkeypatch.setattr(viewer_serving, "stop_on_signals", noted)
    running = viewer_serving.RunningViewer(a_site(), cache_dir=tmp_path / "cache")
    assert ".localhost:" in running.url
    serving = threading.Thread(target=running.run, daemon=True)
    serving.start()
    looking = visits.visit(browser, running.url)
    page = looking.page
    try:
        page.goto(running.address("/evals/new"))
        page.wait_for_url(f"{running.url}/evals/new", timeout=PATIENCE_MS)
        assert page.locator("h1").count() == 1
        assert [cookie["domain"] for cookie in page.context.cookies()] == [
            running.url.partition("://")[2].partition(":")[0]
        ]
        looking.open("/evals/new/samples")
        assert looking.wrong == []
        # By its number it is the same server, and a stranger to this cookie.
        reply = page.goto(f"http://127.0.0.1:{running.port}/evals")
        assert reply is not None and reply.status == 403
    finally:
        page.context.close()
        started[0].should_exit = True
        serving.join(60)
