"""The cache of platform datasets that `eval run` uses."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import respx

from osmosis_ai.api.client import PlatformClient
from osmosis_ai.api.http_errors import PlatformError
from osmosis_ai.api.transfer import BlobClient
from osmosis_ai.datasets import file_digest
from osmosis_ai.errors import NotFoundError, OsmosisError
from osmosis_ai.services.datasets import CachedDataset, fetch_dataset
from osmosis_ai.services.eval_runs.run import EvalRunRequest, PreparedEvalRun, prepare_eval_run
from tests.api.blob_server import BlobServer, serve
from tests.datasets.builders import jsonl, prompt_rows
from tests.logins import FERN, IDENTITY, TOKEN, make_checkout, save_login, use_platform
from tests.workspace.builders import MINIMAL_EVAL

ROWS = jsonl(prompt_rows(5)).encode()
READY: dict[str, Any] = {
    "id": "ds_31",
    "file_name": "multiply",
    "file_size": len(ROWS),
    "status": "uploaded",
    "file_format": "jsonl",
    "updated_at": "2026-10-02T07:00:00Z",
}
CONFIG = Path("configs/eval/multiply.toml")


class Platform:
    """A platform with one dataset."""

    def __init__(self, router: respx.MockRouter, store: BlobServer) -> None:
        self.store = store
        self.detail = router.get(f"{FERN}/api/cli/datasets/multiply")
        self.has(ROWS)
        router.get(url__regex="/download$").respond(json={"presigned_url": store.signed("rows")})

    def has(self, content: bytes, **more: Any) -> None:
        self.store.blobs["rows"] = content
        self.detail.respond(json={**READY, "file_size": len(content), **more})

    @property
    def downloads(self) -> int:
        return len(self.store.asked("GET"))


@pytest.fixture
def platform(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Platform]:
    use_platform(monkeypatch)
    monkeypatch.setenv("OSMOSIS_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setitem(BlobClient.__init__.__kwdefaults__, "sleep", lambda _: None)
    with respx.mock(assert_all_called=False) as router, serve() as store:
        router.route(host="127.0.0.1").pass_through()
        yield Platform(router, store)


def fetch(**options: Any) -> CachedDataset:
    with PlatformClient(FERN, TOKEN, IDENTITY) as client:
        return fetch_dataset(client, "multiply", **options)


def test_download_once(platform: Platform) -> None:
    first = fetch()
    assert (first.source, first.path.read_bytes()) == ("download", ROWS)
    assert first.path.name == f"{file_digest(first.path)}.jsonl"
    second = fetch()
    assert second == CachedDataset(first.path, first.sha256, "cache")
    assert platform.downloads == 1


@pytest.mark.parametrize("damage", [b"", b"other bytes", None])
def test_damaged_cache(platform: Platform, damage: bytes | None) -> None:
    path = fetch().path
    if damage is None:
        path.unlink()
    else:
        path.write_bytes(damage)
    assert (fetch().source, path.read_bytes()) == ("download", ROWS)
    (path.parent / "metadata.json").write_text("{")
    assert fetch().source == "download"


def test_previous_version_is_kept(platform: Platform) -> None:
    old = fetch().path
    platform.has(b"{}\n", updated_at="2026-10-03T07:00:00Z")
    new = fetch().path
    assert old.exists() and new.exists()


def test_wrong_size(platform: Platform) -> None:
    platform.has(ROWS, file_size=len(ROWS) + 1)
    with pytest.raises(PlatformError, match="instead of"):
        fetch()
    platform.has(ROWS)
    assert fetch().source == "download"


def test_format_in_the_name(platform: Platform) -> None:
    platform.has(ROWS, file_format=None, file_name="multiply.JSONL")
    assert fetch().path.suffix == ".jsonl"
    platform.has(ROWS, file_format="xlsx")
    with pytest.raises(OsmosisError, match="format: xlsx"):
        fetch()


@pytest.mark.parametrize("dataset_id", ["../../evil", "a/b", "..", "x" * 300, "ünï"])
def test_dataset_id_is_not_a_path(platform: Platform, dataset_id: str, tmp_path: Path) -> None:
    platform.has(ROWS, id=dataset_id)
    assert fetch().path.parent.parent == tmp_path / "cache" / "datasets"


# In `eval run`


def prepare(**options: Any) -> PreparedEvalRun:
    return prepare_eval_run(EvalRunRequest(config=CONFIG), **options)


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    workspace = make_checkout(tmp_path / "maze")
    (workspace.root / CONFIG).write_text(MINIMAL_EVAL.replace("openai/gpt-5-mini", "osmosis/tiny"))
    monkeypatch.chdir(workspace.root)
    return workspace.root


@pytest.mark.parametrize("status, code", [(401, "AUTH_REQUIRED"), (500, "PLATFORM_ERROR")])
def test_platform_errors(platform: Platform, root: Path, status: int, code: str) -> None:
    save_login()
    platform.detail.respond(status, json={"error": "x"})
    with pytest.raises(PlatformError) as caught:
        prepare()
    assert caught.value.code == code


def test_eval_uses_platform_dataset(platform: Platform, root: Path) -> None:
    save_login()
    prepared = prepare()
    assert (prepared.dataset.source, len(prepared.selection)) == ("download", 5)
    assert prepare().dataset.source == "cache"


def test_unknown_dataset(platform: Platform, root: Path) -> None:
    save_login()
    platform.detail.respond(404, json={"error": "there is no dataset 'multiply'"})
    with pytest.raises(NotFoundError, match=f"not found in .* or on {FERN}") as missing:
        prepare()
    assert "osmosis dataset upload" in (missing.value.hint or "")
