"""The platform's pages in Debian's Chromium, as somebody sees and uses them who has signed in."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from tests.browser.platform_site import CANARY, PASSWORD, PlatformSite, platform_site
from tests.browser.visits import NARROW, WIDE, look_at_pages, visit
from tests.conftest import home_of_a_module

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = pytest.mark.e2e

# What the viewer's own tests have not seen; `make nightly` asks axe about all of them, in each window.
LOOKED_AT_THOROUGHLY = frozenset(
    {"dataset", "tokens and sessions", "submit again?", "comparison", "training"}
)


@pytest.fixture(scope="module")
def site(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PlatformSite]:
    scratch = tmp_path_factory.mktemp("site")
    with home_of_a_module(scratch / "user"), platform_site(scratch) as made:
        yield made


def look_at_every_page(browser: Browser, site: PlatformSite, **settings: Any) -> None:
    thoroughly = LOOKED_AT_THOROUGHLY if settings.get("java_script_enabled", True) else frozenset[str]()
    looking = visit(browser, site.base, site.session(site.mara), **settings)
    shown: list[str] = []
    looking.page.on("response", lambda reply: shown.append(reply.headers.get("content-type", "")))
    look_at_pages(looking, site.pages(), thoroughly=thoroughly)
    assert not [each for each in shown if each.startswith("application/json")], (
        "a person got what is for programs"
    )


@pytest.mark.parametrize(
    ("width", "scheme"), [(WIDE, "light"), pytest.param(NARROW, "dark", marks=pytest.mark.nightly)]
)
def test_every_page_is_sound_at_two_widths(
    browser: Browser, site: PlatformSite, width: int, scheme: str
) -> None:
    look_at_every_page(browser, site, viewport={"width": width, "height": 800}, color_scheme=scheme)


@pytest.mark.nightly
def test_every_page_is_there_without_script(browser: Browser, site: PlatformSite) -> None:
    look_at_every_page(browser, site, viewport={"width": NARROW, "height": 800}, java_script_enabled=False)


def test_a_stranger_signs_in_and_stops_a_run_with_a_double_click(
    browser: Browser, site: PlatformSite
) -> None:
    name = site.submit()
    looking = visit(browser, site.base)
    page = looking.page
    looking.open(f"/fern/evals/{name}")
    page.get_by_label("Email").fill("mara@fern.example")
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Sign in").click()
    page.wait_for_url(f"**/fern/evals/{name}")
    page.get_by_role("link", name="Stop").click()
    page.get_by_text("A retry runs the missing attempts.").wait_for()
    page.get_by_role("button", name="Stop").dblclick()
    page.wait_for_url(f"**/fern/evals/{name}")
    page.get_by_title("the run has ended (stopped)").wait_for()
    assert page.get_by_role("button", name="Stop").is_disabled()
    assert site.log_of(name).count("mara@fern.example (on the run's page) asked for the run to stop") == 1
    assert looking.wrong == []
    page.context.close()


def test_a_page_whose_session_ends_says_so_where_everybody_sees_it(
    browser: Browser, site: PlatformSite
) -> None:
    state = site.session(site.noa)
    looking = visit(browser, site.base, state)
    page = looking.page
    looking.open(f"/fern/evals/{site.runs['waiting']}")
    with site.services.db.transaction() as session:
        site.services.accounts.end_sessions(session, site.noa.user.id)
    # The page asks anew when it is seen again, as it does when its stream ends.
    page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    said = page.locator("main > .problem")
    said.wait_for()
    assert "sign in" in said.inner_text().lower() and said.is_visible()
    assert not [each for each in looking.wrong if "401" not in each]
    page.context.close()


def test_a_dataset_larger_than_a_form_is_uploaded_in_parts(browser: Browser, site: PlatformSite) -> None:
    looking = visit(browser, site.base, site.session(site.mara))
    page, rows = looking.page, b'{"user_prompt": "What is 1 + 1?", "ground_truth": "2"}\n' * 160_000
    looking.open("/fern/datasets")
    field = page.locator("input[type=file]")
    field.set_input_files({"name": "large.jsonl", "mimeType": "text/plain", "buffer": rows})
    with page.expect_navigation():
        page.get_by_role("button", name="Upload dataset").click()
    page.get_by_role("link", name="large", exact=True).wait_for()
    assert site.services.datasets.get(site.mara.workspace.id, "large").file_size == len(rows) > 8 * 1024**2
    field.set_input_files({"name": "large.txt", "mimeType": "text/plain", "buffer": b"x"})
    page.get_by_role("button", name="Upload dataset").click()
    page.get_by_text("must be one of").first.wait_for()
    assert not [each for each in looking.wrong if "409" not in each]
    page.context.close()


def test_no_page_holds_a_secret(browser: Browser, site: PlatformSite) -> None:
    looking = visit(browser, site.base, site.session(site.mara))
    for path in site.pages().values():
        assert CANARY not in looking.page.context.request.get(site.base + path).text(), path
    looking.page.context.close()
