"""The viewer in Debian's Chromium: it says nothing on the console, asks nobody else, fits, and works with keys alone."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from osmosis_ai.api.wire.base import LogEntry
from osmosis_ai.evaluation.headline import Headline
from osmosis_ai.evaluation.run_places import RunKind
from osmosis_ai.ui.assets import asset_name
from osmosis_ai.viewer.source import RunDetail
from tests.browser import visits
from tests.browser.site import PAGES, a_site, served
from tests.browser.visits import (
    DRAWN_WORDS,
    NARROW,
    NARROWEST,
    PATIENCE_MS,
    STREAMS_NOTED,
    WIDE,
    Visit,
    look_at_pages,
)
from tests.viewer.fake_source import FakeSource, a_run, a_sample
from tests.viewer.test_training_page import learned

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


def test_every_page_is_sound_in_a_window(browser: Browser, opened: tuple[str, Any]) -> None:
    look_at_every_page(browser, opened, viewport={"width": WIDE, "height": 900}, color_scheme="light")


@pytest.mark.nightly
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [WIDE, NARROW, NARROWEST])
def test_every_page_is_sound_in_every_window(
    browser: Browser, opened: tuple[str, Any], width: int, scheme: str
) -> None:
    look_at_every_page(browser, opened, viewport={"width": width, "height": 800}, color_scheme=scheme)


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


def test_single_keys_can_be_switched_off_and_stay_off(browser: Browser, opened: tuple[str, Any]) -> None:
    looking = visit(browser, opened)
    page = looking.page
    looking.open("/evals")
    page.keyboard.press("?")
    page.locator("#keys-help input").uncheck()
    page.keyboard.press("Escape")
    looking.open("/evals")
    page.keyboard.press("j")
    assert page.evaluate("document.activeElement === document.body")
    # What is off can be switched on again, with no key of its own.
    page.locator("#keys").click()
    page.locator("#keys-help input").check()
    page.keyboard.press("Escape")
    page.evaluate("document.activeElement.blur()")
    page.keyboard.press("j")
    assert not page.evaluate("document.activeElement === document.body")
    assert looking.wrong == []
    page.context.close()


def test_on_paper_what_can_be_opened_is_open(browser: Browser, opened: tuple[str, Any]) -> None:
    looking = visit(browser, opened, viewport={"width": WIDE, "height": 800})
    looking.open(PAGES["evaluation"])
    numbers = looking.page.locator("details table").first
    is_seen = "(table) => table.checkVisibility({ contentVisibilityAuto: true, visibilityProperty: true })"
    assert not numbers.evaluate(is_seen)
    # Of this one only the form is there, which is for the screen.
    by_column = looking.page.locator("#slices")
    assert by_column.is_visible()
    looking.page.emulate_media(media="print")
    assert numbers.evaluate(is_seen)
    assert not by_column.is_visible()
    assert looking.wrong == []
    looking.page.context.close()


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


@pytest.mark.parametrize("width", [NARROW, 481, 609, 1000, WIDE])
def test_the_words_of_every_drawing_are_large_enough_to_be_read(
    browser: Browser, opened: tuple[str, Any], width: int
) -> None:
    looking = visit(browser, opened, viewport={"width": width, "height": 900})
    for name in ("evaluation", "training", "comparison", "rubric", "conversation"):
        looking.open(PAGES[name])
        drawn = looking.page.evaluate(DRAWN_WORDS)
        assert drawn["drawings"] and drawn["least"] >= 10, (name, drawn)
        assert drawn["over"] == drawn["beyond"] == [], (name, drawn)
        looking.seen(name)
    assert looking.wrong == []
    looking.page.context.close()


def test_the_numbers_of_a_curve_are_told_where_the_pointer_is(
    browser: Browser, opened: tuple[str, Any]
) -> None:
    looking = visit(browser, opened, viewport={"width": WIDE, "height": 900})
    looking.open("/training/keen-owl-2")
    looking.page.locator(".plot svg[data-x]").first.hover()
    said = looking.page.locator(".hover").first
    assert said.text_content()
    assert looking.wrong == []
    looking.page.context.close()


# Live

# Which streams a page has opened, and whether it is seen, as a test says.
OPEN_STREAMS = "window.streams.filter((each) => each.readyState !== EventSource.CLOSED).length"


def going_on(site: FakeSource, name: str, kind: RunKind = "eval") -> None:
    """Add a run that goes on."""
    site.entries = [each for each in site.entries if each.name != name]
    site.entries.append(a_run(name, kind, status="running", ended_at=None))
    site.listed[name] = []


def one_more_finished(site: FakeSource, name: str) -> None:
    """Let one more sample of a run finish."""
    finished = [*site.listed[name], a_sample(len(site.listed[name]))]
    run = next(each for each in site.entries if each.name == name)
    line = Headline(pass_rate=1.0, low=0.5, high=1.0, scored=len(finished), planned=40)
    site.details[name] = RunDetail(replace(run, headline=line))
    site.listed[name] = finished


def test_a_finished_sample_is_on_the_page_by_itself_and_the_focus_stays(
    browser: Browser, opened: tuple[str, Any], site: FakeSource
) -> None:
    going_on(site, "growing")
    looking = visit(browser, opened)
    page = looking.page
    page.add_init_script(STREAMS_NOTED)
    parts: list[str] = []
    page.on("request", lambda asked: parts.append(asked.url) if "x-live-part" in asked.headers else None)
    looking.open("/evals/growing")
    page.evaluate("window.mark = 'the page was not loaded again'")
    page.get_by_role("link", name="Samples").focus()
    page.wait_for_function("window.streams[0]?.readyState === EventSource.OPEN")
    assert parts == []
    for scored in (1, 2):
        one_more_finished(site, "growing")
        page.get_by_text(f"{scored} of 40 planned scored").first.wait_for()
        assert looking.focused() == "Samples"
    assert len(parts) == 2 and page.evaluate("window.mark")
    page.evaluate("window.seen(false)")
    assert page.evaluate(OPEN_STREAMS) == 0
    one_more_finished(site, "growing")
    page.evaluate("window.seen(true)")
    page.get_by_text("3 of 40 planned scored").first.wait_for()
    assert page.evaluate(OPEN_STREAMS) == 1
    assert looking.wrong == []
    page.context.close()


def test_the_counts_above_a_list_of_samples_follow_the_run_and_its_filter_stays(
    browser: Browser, opened: tuple[str, Any], site: FakeSource
) -> None:
    going_on(site, "counting")
    looking = visit(browser, opened)
    page = looking.page
    page.add_init_script(STREAMS_NOTED)
    looking.open("/evals/counting/samples?outcome=passed")
    page.wait_for_function("window.streams[0]?.readyState === EventSource.OPEN")
    outcomes = page.get_by_role("navigation", name="Outcome")
    assert outcomes.get_by_role("link", name="all").text_content() == "all 0"
    for scored in (1, 2):
        one_more_finished(site, "counting")
        outcomes.get_by_role("link", name=f"all {scored}", exact=True).wait_for()
    assert outcomes.locator("[aria-current]").text_content() == "passed 2"
    assert looking.wrong == []
    page.context.close()


def test_what_was_opened_stays_open_while_the_page_follows_its_run(
    browser: Browser, opened: tuple[str, Any], site: FakeSource
) -> None:
    going_on(site, "learning", "training")
    site.curves_of = {**site.curves_of, "learning": learned(12)}
    looking = visit(browser, opened, viewport={"width": WIDE, "height": 500})
    page = looking.page
    looking.open("/training/learning")
    page.get_by_text("metrics in numbers").click()
    page.evaluate("scrollTo(0, 300)")
    place = page.evaluate("scrollY")
    site.curves_of = {**site.curves_of, "learning": learned(13)}
    site.listed["learning"] = [a_sample(0)]
    page.get_by_text("after step 13").first.wait_for()
    opened_part = "details:has(> summary:text('metrics in numbers'))"
    assert page.locator(opened_part).get_attribute("open") is not None
    assert page.evaluate("scrollY") == place > 0
    assert looking.wrong == []
    page.context.close()


# The first line that is seen of a log's box, and whether the box is at its end.
READ_LINE = """
(box) => {
  const line = [...box.children].find((each) => each.offsetTop + each.offsetHeight > box.scrollTop);
  return [line.querySelector(".said").textContent, box.scrollTop + box.clientHeight >= box.scrollHeight - 1];
}
"""


def test_a_log_is_followed_at_its_end_until_who_reads_scrolls_up(
    browser: Browser, opened: tuple[str, Any], site: FakeSource
) -> None:
    def lines(first: int, last: int) -> list[LogEntry]:
        return [LogEntry(message=f"line {number}", step="run") for number in range(first, last)]

    going_on(site, "telling")
    told = site.lines
    site.lines = lines(0, 400)
    looking = visit(browser, opened, viewport={"width": WIDE, "height": 500})
    page = looking.page
    try:
        looking.open("/evals/telling/log")
        box = page.locator(".log")
        page.get_by_text("line 399", exact=True).wait_for()
        assert box.evaluate(READ_LINE)[1] is True
        site.lines = lines(0, 430)
        one_more_finished(site, "telling")
        page.get_by_text("line 429", exact=True).wait_for()
        assert box.evaluate(READ_LINE)[1] is True

        # A page of a log has its last 200 lines: what was read moves up as those before it go away.
        box.evaluate("(box) => { box.scrollTop = box.scrollHeight / 2; }")
        read = box.evaluate(READ_LINE)
        site.lines = lines(0, 460)
        one_more_finished(site, "telling")
        page.get_by_text("line 459", exact=True).wait_for(state="attached")
        assert box.evaluate(READ_LINE) == read == [read[0], False]
        assert looking.wrong == []
    finally:
        site.lines = told
        page.context.close()


def test_what_changes_is_said_at_most_every_five_seconds(browser: Browser, opened: tuple[str, Any]) -> None:
    looking = visit(browser, opened)
    page = looking.page
    page.clock.install(time=0)
    looking.open("/evals/new")
    page.clock.pause_at(60_000)
    module = f"/assets/{asset_name('say.js')}"
    page.evaluate("(module) => import(module).then((found) => { window.say = found.say; })", module)

    def heard(words: str, after_ms: int) -> str:
        page.evaluate("(words) => window.say(words)", words)
        page.clock.run_for(after_ms)
        return page.locator("#said").text_content() or ""

    assert heard("one", 10) == "one"
    assert heard("two", 4000) == "one"
    assert heard("three", 900) == "one"
    assert heard("four", 100) == "four"
    page.context.close()


@pytest.mark.parametrize(
    "page",
    ["", "/samples", "/samples?outcome=passed", "/samples/0.0", "/samples/0.0/raw", "/log", "/log?cursor=20"],
)
def test_a_page_of_a_run_that_is_deleted_says_so_and_keeps_what_it_shows(
    browser: Browser, opened: tuple[str, Any], site: FakeSource, page: str
) -> None:
    going_on(site, "passing")
    one_more_finished(site, "passing")
    site.conversations = {**site.conversations, ("passing", 0, 0): b'{"steps": []}'}
    looking = visit(browser, opened)
    looking.page.add_init_script(STREAMS_NOTED)
    with looking.page.expect_response(lambda reply: "/changes" in reply.url):
        looking.open(f"/evals/passing{page}")
    assert looking.page.evaluate(OPEN_STREAMS) == 1
    heading = looking.page.locator("h1").text_content()
    one_more_finished(site, "passing")
    site.entries = [each for each in site.entries if each.name != "passing"]
    problem = looking.page.locator("main .problem[role=alert]")
    problem.wait_for()
    assert problem.text_content() == "This run is not there any more. Back to the list"
    assert looking.page.locator("h1").text_content() == heading
    assert looking.wrong == []
    problem.get_by_role("link").click()
    looking.page.wait_for_url("**/evals")
    looking.page.context.close()


def test_a_page_whose_cookies_are_gone_says_that_it_is_not_updated_any_more(
    browser: Browser, opened: tuple[str, Any], site: FakeSource
) -> None:
    going_on(site, "forgotten")
    looking = visit(browser, opened)
    page = looking.page
    page.add_init_script(STREAMS_NOTED)
    with page.expect_response(lambda reply: "/changes" in reply.url):
        looking.open("/evals/forgotten")
    page.context.clear_cookies()
    # Its stream is open still: it hears of the change, and is refused what has changed.
    one_more_finished(site, "forgotten")
    problem = page.locator("main .problem[role=alert]")
    problem.wait_for()
    assert "This page is not updated any more. Sign in again or" in problem.inner_text()
    assert page.evaluate(OPEN_STREAMS) == 0
    page.context.close()


def test_what_samples_said_has_room_in_a_narrow_window(
    browser: Browser, opened: tuple[str, Any], site: FakeSource
) -> None:
    site.entries = [*site.entries, a_run("talkative")]
    said = {"input": "what is it? " * 13, "output": "it is nothing, " * 10}
    site.listed["talkative"] = [a_sample(0, **said)]
    looking = visit(browser, opened, viewport={"width": NARROW, "height": 800})
    looking.open("/evals/talkative/samples")
    assert looking.page.locator("table.samples tbody tr").bounding_box()["height"] < 140
    looking.seen("samples")
    assert looking.wrong == []
    looking.page.context.close()


def test_a_page_whose_cursor_is_none_of_this_server_follows_its_run_all_the_same(
    browser: Browser, opened: tuple[str, Any], site: FakeSource
) -> None:
    going_on(site, "growing")
    looking = visit(browser, opened)
    page, answered = looking.page, list[tuple[int, bool]]()
    page.add_init_script(STREAMS_NOTED)
    page.on(
        "response",
        lambda reply: "/changes" in reply.url and answered.append((reply.status, "since=" in reply.url)),
    )

    def as_an_earlier_release_made_it(route: Any) -> None:
        made = route.fetch()
        route.fulfill(
            response=made, body=re.sub(r'data-live-cursor="[^"]+"', 'data-live-cursor="0-0-x"', made.text())
        )

    page.route(re.compile("/evals/growing$"), as_an_earlier_release_made_it)
    with page.expect_response(lambda reply: "/changes" in reply.url and reply.status == 200):
        looking.open("/evals/growing")
    page.unroute_all()
    # The stream was refused, and so was who asked why; the next one begins anew, and is a stream again.
    assert answered == [(400, True), (400, True), (200, False)]
    assert page.evaluate(OPEN_STREAMS) == 1
    one_more_finished(site, "growing")
    page.get_by_text("1 of 40 planned scored").first.wait_for()
    page.context.close()


@pytest.mark.parametrize("status", ["running", "finished"])
@pytest.mark.parametrize("page", ["", "/samples", "/samples/0.0", "/log"])
def test_a_page_of_a_run_that_has_ended_asks_whether_it_is_there_when_it_is_seen_again_and_no_oftener(
    browser: Browser, opened: tuple[str, Any], site: FakeSource, page: str, status: str
) -> None:
    going_on(site, "over")
    one_more_finished(site, "over")
    del site.details["over"]
    site.conversations = {**site.conversations, ("over", 0, 0): b'{"steps": []}'}
    finished = [replace(each, status="finished") if each.name == "over" else each for each in site.entries]
    if status == "finished":
        site.entries = finished
    looking, asked = visit(browser, opened), list[int]()
    shown = looking.page
    shown.add_init_script(STREAMS_NOTED)
    looking.open(f"/evals/over{page}")
    if status == "running":
        assert shown.evaluate(OPEN_STREAMS) == 1
        site.entries = finished
        shown.get_by_text("The run has ended.").wait_for(state="attached")
    shown.clock.install()
    shown.on("response", lambda reply: asked.append(reply.status) if "/changes" in reply.url else None)

    def seen_again() -> None:
        shown.evaluate("window.seen(false)")
        with shown.expect_response(lambda reply: "/changes" in reply.url):
            shown.evaluate("window.seen(true)")
        shown.clock.run_for(60_000)

    seen_again()
    problem = shown.locator("main .problem[role=alert]")
    assert (asked, problem.count(), shown.evaluate(OPEN_STREAMS)) == ([200], 0, 0)
    site.entries = [each for each in site.entries if each.name != "over"]
    seen_again()
    problem.wait_for()
    assert problem.text_content() == "This run is not there any more. Back to the list"
    problem.get_by_role("link").click()
    shown.wait_for_url("**/evals")
    assert asked == [200, 404]
    # Chromium says on the console that a run was not found, which it was not.
    assert [each for each in looking.wrong if "status of 404" not in each] == []
    shown.context.close()


@pytest.mark.parametrize("status", ["running", "stopped"])
def test_a_page_of_a_run_that_has_ended_follows_it_again_once_it_goes_on_and_the_tab_is_seen(
    browser: Browser, opened: tuple[str, Any], site: FakeSource, status: str
) -> None:
    going_on(site, "resumed")
    site.details.pop("resumed", None)
    running = site.entries
    stopped = [replace(each, status="stopped") if each.name == "resumed" else each for each in running]
    site.entries = stopped if status == "stopped" else running
    looking = visit(browser, opened)
    page = looking.page
    page.add_init_script(STREAMS_NOTED)
    looking.open("/evals/resumed")
    if status == "running":
        site.entries = stopped
        page.get_by_text("The run has ended.").wait_for(state="attached")
    assert page.evaluate(OPEN_STREAMS) == 0
    site.entries = running
    page.evaluate("window.seen(false)")
    page.evaluate("window.seen(true)")
    page.locator("main").get_by_text("running", exact=True).wait_for()
    assert page.evaluate(OPEN_STREAMS) == 1
    one_more_finished(site, "resumed")
    page.get_by_text("1 of 40 planned scored").first.wait_for()
    assert looking.wrong == []
    page.context.close()


def test_older_lines_of_a_log_that_grows_stand_on_their_page_as_those_of_any(
    browser: Browser, opened: tuple[str, Any], site: FakeSource
) -> None:
    going_on(site, "telling")
    looking = visit(browser, opened)
    looking.page.add_init_script(STREAMS_NOTED)
    for address, is_box in (("/evals/telling/log", True), ("/evals/telling/log?cursor=100", False)):
        looking.open(address)
        assert looking.page.evaluate(OPEN_STREAMS) == 1
        log = looking.page.locator("ol.log")
        assert log.evaluate("(box) => getComputedStyle(box).maxHeight !== 'none'") is is_box
        assert log.evaluate("(box) => box.scrollTop > 0") is is_box
    assert looking.wrong == []
    looking.page.context.close()


@pytest.mark.nightly
def test_twenty_tabs_of_one_browser_are_all_there_and_all_follow(
    browser: Browser, opened: tuple[str, Any], site: FakeSource
) -> None:
    going_on(site, "growing")
    base, state = opened
    context = browser.new_context(storage_state=state)
    context.set_default_timeout(PATIENCE_MS)
    context.add_init_script(STREAMS_NOTED)
    tabs = [context.new_page() for _ in range(20)]
    for tab in tabs:
        tab.goto(f"{base}/evals/growing", wait_until="load")
    one_more_finished(site, "growing")
    for tab in tabs:
        tab.get_by_text("1 of 40 planned scored").first.wait_for()
    # The others ask now and then: a browser has six connections to a server.
    assert 1 <= sum(tab.evaluate(OPEN_STREAMS) for tab in tabs) <= 4
    context.close()
