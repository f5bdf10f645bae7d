"""Live updates of a run."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from osmosis_ai.platform.shared_reads import SharedReads
from osmosis_ai.training.runs.run_directory import ValidationSamples
from tests.viewer.browsing import page_text, visitor
from tests.viewer.fake_source import FakeSource, a_run, a_sample
from tests.viewer.source_contract import sample_record


def test_concurrent_readers_share_one_read() -> None:
    reads, asked, all_ask = SharedReads(), list[str](), threading.Barrier(20, timeout=60)

    def read() -> str:
        asked.append("read")
        return "detail"

    def ask(_: int) -> str:
        all_ask.wait()
        return reads.once("run", read)

    with ThreadPoolExecutor(20) as watchers:
        assert set(watchers.map(ask, range(20))) == {"detail"}
    assert asked == ["read"]
    with pytest.raises(ZeroDivisionError):
        reads.once("log", lambda: 1 // 0)
    assert reads.once("log", lambda: 1) == 1


@pytest.mark.parametrize(
    ("status", "follows"), [("running", True), ("incomplete", True), ("finished", False)]
)
def test_live_pages_follow_unfinished_runs(status: str, follows: bool) -> None:
    name = "keen-owl-2"
    validated = ValidationSamples.of([sample_record(0, 0, 1.0)], step=4, pass_threshold=1.0)
    source = FakeSource(
        [a_run("calm-fern-1", status=status), a_run(name, "training", status=status)],
        listed={"calm-fern-1": [a_sample(0)]},
        conversations={("calm-fern-1", 0, 0): b'{"steps": []}', (name, 0, 0): b'{"steps": []}'},
        validations={name: validated},
    )
    pages = visitor(source)
    for below in ("", "/samples", "/samples/0.0", "/samples/0.0/raw", "/log", "/log?cursor=1"):
        page = page_text(pages.get(f"/evals/calm-fern-1{below}"))
        assert ('data-live-source="/evals/calm-fern-1/changes"' in page) is follows, below
        assert ('data-live-ended="/evals/calm-fern-1/changes"' in page) is not follows, below
    for below in ("", "/log", "/validation/0.0"):
        page = page_text(pages.get(f"/training/keen-owl-2{below}"))
        assert ('data-live-source="/training/keen-owl-2/changes"' in page) is follows, below
        assert ('data-live-ended="/training/keen-owl-2/changes"' in page) is not follows, below
    assert pages.get("/evals/calm-fern-1/changes").json()["ended"] is not follows


def test_changes_of_runs() -> None:
    source = FakeSource([a_run("calm-fern-1")], listed={"calm-fern-1": [a_sample(0)]})
    client = visitor(source)
    reply = client.get("/evals/calm-fern-1/changes")
    state = {"cursor": "finished.1", "status": "finished", "headline": None, "ended": True}
    assert (reply.json(), reply.headers["cache-control"]) == (state, "no-store")
    source.listed["calm-fern-1"].append(a_sample(1))
    assert client.get("/evals/calm-fern-1/changes").json()["cursor"] == "finished.2"
    unknown = client.get("/evals/none/changes")
    assert (unknown.status_code, unknown.json()) == (404, {"message": "there is no run 'none' here."})
