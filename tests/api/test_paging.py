from __future__ import annotations

import pytest

from osmosis_ai.api.http_errors import PlatformError
from osmosis_ai.api.paging import iterate_log_pages, iterate_pages
from osmosis_ai.api.wire.base import LogEntry, LogPage
from osmosis_ai.api.wire.datasets import Dataset, DatasetList


def _page(*ids: str, next_offset: int | None) -> DatasetList:
    return DatasetList(datasets=[Dataset(id=name) for name in ids], next_offset=next_offset)


def _all(pages: dict[int, DatasetList]) -> list[str]:
    found = iterate_pages(lambda limit, offset: pages[offset], lambda page: page.datasets)
    return [dataset.id for page in found for dataset in page.datasets]


def test_pages_are_read_until_the_last() -> None:
    pages = {0: _page("a", "b", next_offset=2), 2: _page("c", next_offset=3), 3: _page("d", next_offset=None)}
    assert _all(pages) == ["a", "b", "c", "d"]


def test_an_empty_page_is_the_last_whatever_it_says() -> None:
    assert _all({0: _page("a", next_offset=1), 1: _page(next_offset=2)}) == ["a"]
    assert _all({0: _page(next_offset=None)}) == []


def test_each_page_is_asked_for_at_its_largest() -> None:
    asked = []

    def fetch(limit: int, offset: int) -> DatasetList:
        asked.append((limit, offset))
        return _page("a", next_offset=None)

    list(iterate_pages(fetch, lambda page: page.datasets, start=7))
    assert asked == [(50, 7)]


@pytest.mark.parametrize("back", [0, 5, -1])
def test_a_server_that_goes_in_circles_is_stopped(back: int) -> None:
    with pytest.raises(PlatformError, match="does not end"):
        _all({0: _page("a", next_offset=5), 5: _page("b", next_offset=back)})


def test_a_server_that_never_ends_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("osmosis_ai.api.paging.MOST_ITEMS", 100)
    pages = iterate_pages(
        lambda limit, offset: _page("a", next_offset=offset + 1), lambda page: page.datasets
    )
    with pytest.raises(PlatformError, match="does not end"):
        list(pages)


def test_logs_are_read_cursor_by_cursor() -> None:
    pages = {
        None: LogPage(logs=[LogEntry(message="3")], next_cursor="2"),
        "2": LogPage(logs=[LogEntry(message="2")], next_cursor="1"),
        "1": LogPage(logs=[LogEntry(message="1")]),
    }
    found = iterate_log_pages(lambda limit, cursor: pages[cursor])
    assert [page.logs[0].message for page in found] == ["3", "2", "1"]


def test_a_log_that_goes_in_circles_is_stopped() -> None:
    with pytest.raises(PlatformError, match="circles"):
        list(iterate_log_pages(lambda limit, cursor: LogPage(next_cursor="same")))
