from __future__ import annotations

import json
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from osmosis_ai.rubric import estimate, report
from osmosis_ai.rubric.judge_agreement import measure_agreement
from osmosis_ai.rubric.report import ReportRecord, write_report
from osmosis_ai.rubric.scores import ScoreTable
from osmosis_ai.ui.pages import one_file_policy
from osmosis_ai.ui.terminal_text import plain as as_said
from osmosis_ai.ui.text import visible
from tests.rubric.tables import NAN, simulated, table

HOSTILE = (
    "</script><script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "<!--<script>",
    "{{ 7 * 7 }} {% raw %}",
    "javascript:alert(1)",
    "\u2028\u2029\x00\ud800</title><base href=//evil.example>",
    "\u202egpj.exe\u2066 \x1b[31m\u200b",
    "</noscript></details></style><style>*{display:none}</style>",
)


@pytest.fixture(autouse=True, scope="module")
def _intervals_of_a_few_draws() -> Iterator[None]:
    """A page shows intervals and does not care how sure they are."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(estimate, "RESAMPLES", 200)
        yield


class Page(HTMLParser):
    """The elements of a page as a browser sees them, and what its scripts hold."""

    def __init__(self, path: Path) -> None:
        super().__init__(convert_charrefs=True)
        self.text = path.read_text(encoding="utf-8")
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[tuple[dict[str, str | None], str]] = []
        self.style = ""
        self.words = ""
        self._inside: str | None = None
        self.feed(self.text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._inside = tag
        if tag == "script":
            self.scripts.append((dict(attrs), ""))

    def handle_endtag(self, tag: str) -> None:
        self._inside = None

    def handle_data(self, data: str) -> None:
        if self._inside == "script":
            attributes, before = self.scripts[-1]
            self.scripts[-1] = (attributes, before + data)
        elif self._inside == "style":
            self.style += data
        else:
            self.words += data

    def data(self, name: str) -> Any:
        """Return the JSON in the script of that id."""
        return json.loads(next(text for attributes, text in self.scripts if attributes.get("id") == name))

    @property
    def tags(self) -> list[str]:
        return [tag for tag, _ in self.elements]

    @property
    def written_out(self) -> list[int]:
        """Return the numbers of the records that are read without scripts."""
        ids = [attributes.get("id") or "" for _, attributes in self.elements]
        return [int(each.removeprefix("record-")) for each in ids if each.startswith("record-")]

    def details(self) -> list[Any]:
        """Return the texts of the records that only the script shows, in the order they are in."""
        chunks = [a["id"] for a, _ in self.scripts if (a.get("id") or "").startswith("chunk-")]
        return [record for chunk in chunks for record in self.data(str(chunk))]


def records(sheet: ScoreTable, text: str = "An answer.", why: str = "Because.") -> Iterator[ReportRecord]:
    for row, label in enumerate(sheet.labels):
        judgements = [
            (model, run + 1, None, None, f"no score: {why}")
            if np.isnan(sheet.scores[row, place, run])
            else (model, run + 1, float(sheet.scores[row, place, run]), f"{why} {model} run {run + 1}", None)
            for place, model in enumerate(sheet.models)
            for run in range(sheet.runs)
        ]
        yield ReportRecord(label, row + 1, f"{text} #{row + 1}", None, judgements, "A question.")


def written(tmp_path: Path, sheet: ScoreTable, header: dict[str, str] | None = None, **texts: str) -> Page:
    path = tmp_path / "report.html"
    write_report(
        path, header or {"title": "Judged"}, sheet, measure_agreement(sheet), records(sheet, **texts)
    )
    return Page(path)


def test_the_page_holds_everything_and_asks_nobody(tmp_path: Path) -> None:
    page = written(tmp_path, simulated(40), {"title": "Judged", "Rubric": "Be kind.", "results": "out.json"})
    for tag, attributes in page.elements:
        assert tag not in {"link", "iframe", "object", "embed", "base", "img", "use"}, tag
        assert not {"src", "style"} & attributes.keys() and not [a for a in attributes if a.startswith("on")]
        assert (attributes.get("href") or "#").startswith("#")
    assert "url(" not in page.style and "@import" not in page.style
    policy = next(a["content"] for t, a in page.elements if t == "meta" and "http-equiv" in a) or ""
    running = [text for attributes, text in page.scripts if attributes.get("type") != "application/json"]
    assert len(running) == 1
    assert policy == one_file_policy(style=page.style, script=running[0])
    assert policy.startswith("default-src 'none'") and "unsafe" not in policy
    for heading in (
        "Agreement of the judges",
        "Repeatability",
        "Largest disagreements",
        "Be kind.",
    ):
        assert heading in page.words


def test_a_page_can_be_read_by_who_does_not_see_it(tmp_path: Path) -> None:
    page = written(tmp_path, simulated(30))
    assert [page.tags.count(tag) for tag in ("h1", "main", "nav")] == [1, 1, 1]
    assert all(attributes.get("scope") in ("col", "row") for tag, attributes in page.elements if tag == "th")
    drawings = [attributes for tag, attributes in page.elements if tag == "svg"]
    assert all(each.get("aria-label") or each.get("aria-hidden") for each in drawings)
    assert sum(each.get("role") == "img" for each in drawings) == page.words.count("The chart's numbers") == 2
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids))


def test_a_report_is_small(tmp_path: Path) -> None:
    answer, why = "An answer of a model to what people asked. " * 19, "It is kind, and clear enough. " * 4
    assert len(written(tmp_path, simulated(30), text=answer, why=why).text.encode()) < 250_000


def test_the_page_shows_the_numbers_of_the_results(tmp_path: Path) -> None:
    sheet = simulated(30)
    agreement = measure_agreement(sheet)
    cells = re.findall(r"[-+]?\d+\.\d+", re.sub(r"<[^>]+>", " ", written(tmp_path, sheet).text))
    for judge in agreement.judges:
        for figure, digits in ((judge.alpha, 2), (judge.retest.single, 2), (judge.mean, 3)):
            shown = [
                f"{value:.{digits}f}"
                for value in (figure.value, figure.low, figure.high)
                if value is not None
            ]
            assert len(shown) == 3 and set(shown) <= set(cells)


def saying(text: str, directory: Path) -> Page:
    """A report where everything that can be named or said is ``text``."""
    sheet = simulated(25, models=2)
    named = table(
        sheet.scores,
        human=sheet.human.tolist(),
        models=[f"{text}judge/a", f"{text}judge/b"],
        labels=[f"{text}{row}" for row in range(25)],
    )
    return written(directory, named, {"title": text, text: text, "results": text}, text=text, why=text)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Page:
    return saying("x", tmp_path_factory.mktemp("plain"))


@pytest.mark.parametrize("hostile", HOSTILE)
def test_whatever_texts_say_they_stay_texts(tmp_path: Path, plain: Page, hostile: str) -> None:
    page = saying(hostile, tmp_path)

    def shape(found: Page) -> list[tuple[str, list[str]]]:
        # A name with a slash may break there: that mark is the template's own.
        return [(tag, sorted(attributes)) for tag, attributes in found.elements if tag != "wbr"]

    assert shape(page) == shape(plain)
    shown = visible(hostile)
    assert page.words.count(f"{as_said(hostile)} #4") == plain.words.count("x #4")
    assert page.data("listing")["label"][3] == f"{shown}3"
    assert not set("\u202e\u2066\u200b\x1b\x00") & set(page.text)


def test_what_only_a_terminal_obeys_is_taken_out_of_texts_and_counted(tmp_path: Path, plain: Page) -> None:
    page = saying("\x1b]0;title\x07be\x1b[2Jfore", tmp_path)
    removed = "(2 terminal sequences removed)"
    assert page.words.count(f"before #4 {removed}") == plain.words.count("x #4") > 0
    assert f"before {removed}" in page.words


def test_every_record_is_in_the_list_with_its_texts(tmp_path: Path) -> None:
    sheet = simulated(450, models=2, runs=2)
    page = written(tmp_path, sheet)
    listing = page.data("listing")
    assert listing["label"] == list(sheet.labels)
    assert len(page.written_out) == 100
    assert sorted(place for place in listing["place"] if place >= 0) == list(range(350))
    assert {row + 1 for row, place in enumerate(listing["place"]) if place < 0} == set(page.written_out)
    assert int(np.argmax(listing["spread"])) + 1 in page.written_out
    details = page.details()
    for row in [row for row, place in enumerate(listing["place"]) if place >= 0][::70]:
        text, truth, question, calls = details[listing["place"][row]]
        assert (text, truth, question) == (f"An answer. #{row + 1}", None, "A question.")
        assert len(calls) == 4
        assert calls[3][:3] == [1, 2, None if np.isnan(sheet.scores[row, 1, 1]) else sheet.scores[row, 1, 1]]
    assert f"An answer. #{page.written_out[0]}" in page.words
    assert listing["unscored"] == np.isnan(sheet.scores).sum(axis=(1, 2)).tolist()


def test_beyond_its_bounds_the_page_keeps_what_differs_most_and_says_where_the_rest_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report, "MAX_LISTED", 50)
    monkeypatch.setattr(report, "MAX_DETAILED", 10)
    monkeypatch.setattr(report, "MAX_WRITTEN_OUT", 4)
    sheet = simulated(60, models=2)
    page = written(tmp_path, sheet, {"title": "Judged", "results": "out/results.json"})
    listing = page.data("listing")
    assert len(listing["label"]) == 50
    kept = [row for row, place in enumerate(listing["place"]) if place >= 0]
    assert len(kept) == len(page.details()) == 6 and len(page.written_out) == 4
    kept += [number - 1 for number in page.written_out]
    assert min(listing["spread"][row] for row in kept) >= sorted(listing["spread"])[-25]
    assert "The list ends at record 50 of 60" in page.words
    assert "Texts and explanations are here for 10 of them" in page.words
    assert page.words.count("Every record is in out/results.json.") == 2


def test_long_texts_are_cut_and_a_page_has_room_for_only_so_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sheet = simulated(30, models=1, runs=1)
    page = written(tmp_path, sheet, text="long " * 2_000)
    assert page.words.count("long " * (report.MAX_TEXT // 5) + "…") == 30
    assert "30 long texts are cut" in page.words
    monkeypatch.setattr(report, "MAX_CHARACTERS", 20_000)
    page = written(tmp_path, sheet, text="long " * 2_000)
    assert page.written_out == [1, 2, 3, 4, 5]
    assert "Texts and explanations are here for 5 of them" in page.words


def test_worst_disagreements_show_both_explanations(tmp_path: Path) -> None:
    scores = [[[0.5], [0.5]], [[0.1], [0.9]], [[0.4], [0.5]]]
    page = written(tmp_path, table(scores, human=[0.5, NAN, 1.0]))
    between, people = page.words.split("Between judge and people")
    card = between.split("Between judges")[1]
    assert card.index("record[2]") < card.index("record[3]")
    assert card.index("maker/judge-a run 1") < card.index("maker/judge-b run 1")
    assert "0.800 apart" in card
    assert "record[3]" in people.split("Records")[0]
    assert ("a", "#record-2") in [(tag, a.get("href")) for tag, a in page.elements]


@pytest.mark.parametrize(("detailed", "quoted"), [(10, 320), (0, 1_000)])
def test_a_disagreement_quotes_as_much_as_is_needed_to_know_a_text_that_the_page_has_in_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, detailed: int, quoted: int
) -> None:
    monkeypatch.setattr(report, "MAX_DETAILED", detailed)
    page = written(tmp_path, table([[[0.1], [0.9]]]), text="x" * 2_000)
    quotes = re.findall(r"<blockquote>(.*?)</blockquote>", page.text)
    assert quotes == ["x" * quoted + "…"]
    assert page.words.count("x" * 2_000 + " #1") == min(detailed, 1)
    assert ("a", "#record-1") in [(tag, a.get("href")) for tag, a in page.elements]


@pytest.mark.parametrize("scores", [[[[NAN]]], [[[0.5]], [[0.5]]], [[[0.0, 1.0], [NAN, NAN]]]])
def test_a_session_with_little_to_show_still_makes_a_page(tmp_path: Path, scores: object) -> None:
    page = written(tmp_path, table(scores))
    assert "Not measured" in page.words
    assert len(page.data("listing")["label"]) == len(scores)  # type: ignore[arg-type]


def test_records_that_do_not_fit_the_table_are_refused_and_nothing_is_written(tmp_path: Path) -> None:
    sheet = simulated(5)
    path = tmp_path / "report.html"
    with pytest.raises(ValueError, match="the table has 5 rows, but there are 4 records"):
        write_report(path, {}, sheet, measure_agreement(sheet), list(records(sheet))[:4])
    assert not path.exists()
