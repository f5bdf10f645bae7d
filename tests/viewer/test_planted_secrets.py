"""A secret that the agent was given and that all told: what the viewer keeps and writes of the run has none of it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from osmosis_ai.services.report_files import ReportFile
from osmosis_ai.services.viewing import report_run
from osmosis_ai.viewer.local.source import LocalSource
from osmosis_ai.viewer.report import RunReportOptions
from osmosis_ai.viewer.source import SampleQuery
from tests.evaluation.recording_hooks import RecordingHooks
from tests.evaluation.rollouts import write_rows
from tests.evaluation.test_runner import World
from tests.standin_model import Reply, StandInModel
from tests.viewer.browsing import page_text, visitor
from tests.viewer.source_contract import listed

pytestmark = pytest.mark.e2e

CANARY = "canary-5f2d9c81a7"
HIDDEN = "[REDACTED]"


@pytest.fixture
async def told(tmp_path: Path) -> AsyncIterator[Path]:
    """A run whose dataset, model and agent's error tell the secret."""
    async with StandInModel(lambda _: Reply(f"the model knows {CANARY}")) as model:
        world = World(tmp_path, model)
        world.hooks = RecordingHooks(secret_values={"AGENT_KEY": CANARY})
        write_rows(world.rows, ["raise", f"the user has {CANARY}"])
        summary = await world.run(secret_names=("AGENT_KEY",))
        assert (summary.succeeded, len(summary.failures)) == (1, 1)
        yield world.directory


async def test_no_page_and_no_index_has_a_secret_that_all_told(told: Path, tmp_path: Path) -> None:
    cache = tmp_path / "index"
    source = LocalSource(told, cache_dir=cache)
    samples = listed(source, "run", SampleQuery())
    assert [sample.input for sample in samples] == ["raise", f"the user has {HIDDEN}"]
    client = visitor(source)
    pages = [
        page_text(client.get(f"/evals/run{path}"))
        for path in ("", "/log", "/samples", "/samples/0.0", "/samples/1.0")
    ]
    # What is not merged yet lies beside the index, what is lies in it.
    kept = _bytes_below(cache)
    source.close()
    kept += _bytes_below(cache)
    assert f"the model knows {HIDDEN}" in pages[-1] and f"key={HIDDEN}" in pages[-2]
    assert f"the model knows {HIDDEN}".encode() in kept and f"key={HIDDEN}".encode() in kept
    assert not [page for page in pages if CANARY in page] and CANARY.encode() not in kept


async def test_no_report_has_a_secret_that_all_told(
    told: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OSMOSIS_CACHE_DIR", str(tmp_path / "index"))
    file = tmp_path / "report.html"
    _, content = report_run(str(told), ReportFile(file), RunReportOptions())
    page = file.read_text()
    assert content is not None and content.conversations
    for said in (f"the model knows {HIDDEN}", f"the user has {HIDDEN}", f"key={HIDDEN}"):
        assert said in page
    assert CANARY not in page and CANARY.encode() not in _bytes_below(tmp_path / "index")


def _bytes_below(directory: Path) -> bytes:
    return b"".join(path.read_bytes() for path in directory.rglob("*") if path.is_file())
