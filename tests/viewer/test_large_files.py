"""Conversations and journals that are larger than anybody should have left them: none is held whole, none holds a page up."""

from __future__ import annotations

import json
from contextlib import closing

import pytest

from osmosis_ai.viewer import conversation_search
from osmosis_ai.viewer.conversation_search import search_conversations
from osmosis_ai.viewer.local.source import LocalSource
from osmosis_ai.viewer.pages import conversation_files
from osmosis_ai.viewer.source import SampleQuery
from tests.viewer.browsing import page_text, visitor
from tests.viewer.local_place import LocalPlace
from tests.viewer.source_contract import sample_record


def leave_conversation(local: LocalPlace, row: int, text: str) -> bytes:
    folder = local.evals / "run" / "trajectories"
    folder.mkdir(exist_ok=True)
    content = json.dumps({"steps": [{"step_id": 1, "source": "user", "message": text}]}).encode()
    (folder / f"row_{row}_run_0.json").write_bytes(content)
    return content


def test_a_large_conversation_is_downloaded_in_pieces_and_read_by_nobody(
    local: LocalPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    local.start("run", rows=1, n=1)
    local.add("run", [sample_record(0, 0, 1.0)])
    content = leave_conversation(local, 0, "word " * 100)
    for name in ("_PIECE", "LARGEST_JSON_SHOWN", "LARGEST_CONVERSATION_BYTES"):
        monkeypatch.setattr(conversation_files, name, 100)
    monkeypatch.setattr(conversation_files, "_HEAD", 50)
    asked = []
    monkeypatch.setattr(
        LocalSource,
        "conversation",
        lambda *place, max_bytes, read=LocalSource.conversation: (
            asked.append(max_bytes) or read(*place, max_bytes=max_bytes)
        ),
    )
    pages, raw = visitor(local.source), "/evals/run/samples/0.0/raw"
    reply = pages.get(f"{raw}?as=file")
    assert reply.content == content
    assert reply.headers["content-disposition"].startswith("attachment")
    page = page_text(pages.get(raw))
    assert "step_id" in page
    assert "word word" not in page
    for wanted in ("?as=messages", "?as=row", "?step=1"):
        assert "it can be downloaded, and is not read" in page_text(pages.get(raw + wanted), status=404)
    assert set(asked) == {100}
    assert pages.get(f"{raw}?as=film").status_code == 400


def test_a_scan_ends_in_time_in_the_midst_of_large_conversations_and_goes_on_there(local: LocalPlace) -> None:
    local.start("run", rows=4, n=1)
    local.add("run", [sample_record(row, 0, 1.0) for row in range(4)])
    for row in range(4):
        leave_conversation(local, row, "wanted")
    query, seen, cursor, scans = SampleQuery(text="wanted"), list[int](), None, 0
    while scans == 0 or cursor is not None:
        seconds = iter([0.0, conversation_search.MOST_SECONDS])
        found = search_conversations(local.source, "run", query, cursor=cursor, clock=seconds.__next__)
        seen += [sample.row for sample in found.page.items]
        cursor, scans = found.page.next, scans + 1
        assert found.looked_at == 1
        assert found.first is not None and found.last is not None
        assert found.first.row == found.last.row == scans - 1
    assert (seen, scans) == ([0, 1, 2, 3], 4)


def test_a_scan_of_a_run_that_is_read_only_in_part_does_not_say_that_it_was_the_end(
    local: LocalPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("osmosis_ai.viewer.local.run_index._BATCH", 2)
    local.start("run", rows=4, n=1)
    local.add("run", [sample_record(row, 0, 1.0) for row in range(4)])
    hasty = LocalSource(local.root, cache_dir=local.root / "cache", patience_s=0.0)
    with closing(hasty):
        pages, path = visitor(hasty), "/evals/run/samples?q=wanted&in=conversations"
        text = page_text(pages.get(path))
        assert "of the journal is read so far" in text and 'http-equiv="refresh"' in text
        assert "That was the end." not in text
        for _ in range(4):
            text = page_text(pages.get(path))
    assert "That was the end." in text and "from sample 0.0 to 3.0" in text


def test_a_line_of_a_journal_may_hold_megabytes_and_the_table_does_not(local: LocalPlace) -> None:
    local.start("run", rows=1, n=1)
    record = sample_record(0, 0, error="x" * 4_000_000)
    object.__setattr__(record, "input", "y" * 4_000_000)
    object.__setattr__(record, "category", "z" * 4_000_000)
    local.add("run", [record])
    pages = visitor(local.source)
    for path in ("/", "/evals/run", "/evals/run/samples", "/evals/run/samples/0.0"):
        assert len(page_text(pages.get(path))) < 1_000_000, path
    index = next((local.root / "cache" / "viewer").glob("run-*.sqlite-wal"))
    assert index.stat().st_size < 1_000_000
