"""The list of runs, as a visitor sees it."""

from __future__ import annotations

from html import unescape

import pytest

from osmosis_ai.evaluation.headline import Headline
from tests.viewer.browsing import gzipped, page_text, visitor
from tests.viewer.fake_source import FakeSource, a_run, a_sample
from tests.viewer.page_content import text_by_class

HEADLINE = Headline(pass_rate=0.418, low=0.372, high=0.463, scored=380, planned=400, failed=20)


def test_a_line_says_what_the_rate_stands_on() -> None:
    source = FakeSource(
        [a_run("calm-fern-1", headline=HEADLINE, reward=0.5, reward_low=0.4, reward_high=0.6)]
    )
    text = page_text(visitor(source).get("/evals"))
    assert 'href="/evals/calm-fern-1"' in text
    said = " ".join(text_by_class(text, "runs")[0].split())
    assert "41.8 % (37.2 – 46.3 %) 380 of 400 planned 20 0.500 (0.400 – 0.600)" in said


def test_a_run_of_which_no_sample_failed_says_so_and_one_that_is_not_counted_yet_does_not() -> None:
    none = Headline(pass_rate=0.45, low=0.34, high=0.57, scored=80, planned=80, failed=0)
    said = [
        " ".join(text_by_class(page_text(visitor(FakeSource([run])).get("/evals")), "runs")[0].split())
        for run in (a_run("calm-fern-1", headline=none), a_run("calm-fern-2"))
    ]
    assert "80 of 80 planned 0 – " in said[0] and "finished – – – – " in said[1]


def test_every_kind_has_a_list_and_the_first_page_has_all() -> None:
    source = FakeSource([a_run("one"), a_run("two", "training"), a_run("three", "rubric")])
    pages = visitor(source)
    assert all(
        name in page_text(pages.get("/")) for name in ("/evals/one", "/training/two", "/rubrics/three")
    )
    assert "/training/two" not in page_text(pages.get("/evals"))
    assert "/rubrics/three" in page_text(pages.get("/rubrics"))


def test_a_list_says_whose_runs_they_are_where_anybody_is_known() -> None:
    named = FakeSource([a_run("one", person="Mara <b>"), a_run("two")])
    text = page_text(visitor(named).get("/evals"))
    assert ">By</th>" in text and "Mara &lt;b&gt;" in text
    assert ">By</th>" not in page_text(visitor(FakeSource([a_run("one")])).get("/evals"))


def test_links_stand_below_the_root_of_the_source() -> None:
    text = page_text(visitor(FakeSource([a_run("one")]), root="/fern").get("/fern/evals"))
    assert 'href="/fern/evals/one"' in text
    assert 'href="/evals' not in text


def test_paging_keeps_the_filter_in_the_address() -> None:
    source = FakeSource([a_run(f"run-{number:03}") for number in range(120)])
    pages = visitor(source)
    text = page_text(pages.get("/evals?q=run&status=finished&sort=name&dir=asc"))
    assert "status=finished&amp;q=run&amp;sort=name&amp;dir=asc&amp;cursor=50" in text
    second = page_text(pages.get("/evals?status=finished&q=run&sort=name&dir=asc&cursor=50"))
    assert "run-050" in second and "run-049" not in second and "120 runs. Pass rates" in second


def test_an_empty_list_tells_what_makes_the_first_run_or_what_a_filter_hides() -> None:
    assert "osmosis eval run configs/eval/NAME.toml" in page_text(visitor(FakeSource()).get("/evals"))
    assert "osmosis eval submit" not in page_text(visitor(FakeSource()).get("/evals"))
    hidden = page_text(visitor(FakeSource([a_run("one")])).get("/evals?q=two"))
    assert "they hide 1" in hidden and "osmosis eval run" not in hidden


def test_an_empty_list_of_a_platform_suggests_what_makes_a_run_there_and_not_here() -> None:
    platform = visitor(FakeSource(), root="/fern")
    for path in ("/fern/", "/fern/evals"):
        text = page_text(platform.get(path))
        assert "osmosis eval submit configs/eval/NAME.toml" in text and "osmosis eval run" not in text
        assert "osmosis demo" not in text
    assert "osmosis train submit configs/training/NAME.toml" in page_text(platform.get("/fern/training"))
    here = page_text(visitor(FakeSource()).get("/training"))
    assert "configs/training/NAME.toml" not in here and "is on the platform's pages" in here


def test_a_filter_over_nothing_is_not_said_to_hide_anything() -> None:
    pages = visitor(FakeSource([a_run("one")]))
    assert "no training directory below" in page_text(pages.get("/training?q=two"))
    assert "This run has no sample with a result." in page_text(
        pages.get("/evals/one/samples?outcome=failed")
    )


def test_the_rarer_filters_are_open_only_while_one_of_them_is_set() -> None:
    pages = visitor(FakeSource([a_run("one")]))
    assert '<details class="more">' in page_text(pages.get("/evals?q=one&status=finished"))
    assert '<details class="more" open>' in page_text(pages.get("/evals?model=tiny"))


@pytest.mark.parametrize(
    "words",
    [
        "sort=colour",
        "dir=up",
        "since=soon",
        "cursor=%00",
        "sort=name&sort=cost",
        "model=a&model=b",
        "q=" + "x" * 501,
        "&".join(["a=b"] * 101),
    ],
)
def test_words_that_make_no_sense_are_refused(words: str) -> None:
    page_text(visitor(FakeSource([a_run("one")])).get(f"/evals?{words}"), status=400)


@pytest.mark.parametrize(
    ("address", "known"),
    [
        ("/evals?page=2", "status, model, dataset"),
        ("/training?limit=5", "q, archived, sort, dir, cursor."),
        ("/evals/one?slice=topic&row=", "it knows slice."),
        ("/evals/one/samples?limit=5", "min_reward, max_reward"),
        ("/evals/one/samples.csv?cursor=x", "min_cost, max_cost, in."),
        ("/evals/one/samples/0.0?page=2", "with, text, hide, elsewhere."),
        ("/evals/one/samples/0.0/raw?page=2", "it knows as, step."),
        ("/evals/one/log?level=ERROR", "it knows cursor."),
        ("/training/one?cursor=x", "it knows smooth."),
        ("/rubrics/one?page=2", "it knows cursor."),
        ("/compare?runs=one", "run, kind, metric, slice, allow."),
        ("/evals/one/samples/0.0/artifacts/a.txt?as=file", "it takes none."),
    ],
)
def test_words_that_a_page_does_not_know_are_refused_by_their_name_with_those_it_knows(
    address: str, known: str
) -> None:
    source = FakeSource([a_run("one")], listed={"one": [a_sample(0)]})
    text = unescape(page_text(visitor(source).get(address), status=400))
    strange = address.rpartition("&")[2].rpartition("?")[2].partition("=")[0]
    assert f"This page does not know the word '{strange}' in its address" in text and known in text


def test_what_a_name_holds_is_text() -> None:
    name = "<script>alert(1)</script>{{ 7*7 }}\u202ex\x1b[31m' onerror=\"x"
    text = page_text(visitor(FakeSource([a_run(name, error=name, model=name)])).get("/"))
    assert "<script>" not in text and "{{ 7*7 }}" in text and "\u202e" not in text and "\x1b" not in text
    assert "&lt;script&gt;" in text


def test_a_full_list_of_long_names_is_small_over_the_wire() -> None:
    source = FakeSource(
        [a_run(f"{number} {'ü' * 290}", headline=HEADLINE, error="x" * 5000) for number in range(60)]
    )
    assert gzipped(page_text(visitor(source).get("/evals"))) < 100_000


def test_of_a_preview_that_is_lost_a_table_says_so_and_of_none_it_shows_a_dash() -> None:
    source = FakeSource(
        [a_run("one")],
        listed={
            "one": [
                a_sample(0),
                a_sample(1, input="what?", output=""),
                a_sample(2, status="failed", passed=None, reward=None, error="no such model"),
            ]
        },
    )
    text = page_text(visitor(source).get("/evals/one/samples"))
    cells = [" ".join(each.split()) for each in text_by_class(text, "text")]
    assert cells[0:4] == ["not recorded", "not recorded", "what?", "–"]
    assert cells[4] == "–" and "no such model" in cells[5]


def test_where_no_preview_was_kept_the_same_is_said_of_every_sample() -> None:
    skipped = a_sample(2, status="skipped", passed=None, reward=None)
    listed = {
        "one": [a_sample(0), a_sample(1, status="failed", passed=None, reward=None, error="no"), skipped]
    }
    text = page_text(visitor(FakeSource([a_run("one")], listed=listed)).get("/evals/one/samples"))
    cells = [" ".join(each.split()) for each in text_by_class(text, "text")]
    assert cells[0:3] == ["not recorded"] * 3 and cells[4:6] == ["not recorded"] * 2


def test_a_page_behind_the_end_of_a_list_that_became_shorter_leads_to_the_first_page() -> None:
    pages = visitor(FakeSource([a_run("one")], listed={"one": [a_sample(0)]}))
    for path, begin in (
        ("/evals?cursor=50", "/evals"),
        ("/evals?q=one&cursor=50", "/evals?q=one"),
        ("/evals/one/samples?cursor=100", "/evals/one/samples"),
        ("/evals/one/samples?outcome=passed&cursor=100", "/evals/one/samples?outcome=passed"),
    ):
        text = page_text(pages.get(path))
        assert f'Nothing is behind here any more. <a href="{begin}">Back to the first page</a>' in text, path
        assert not any(wrong in text for wrong in ("they hide", "makes the first", "no sample with")), path
