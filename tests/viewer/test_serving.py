"""Access to the viewer of this machine."""

from __future__ import annotations

import os
import socket
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from osmosis_ai.errors import NotFoundError, OsmosisError
from osmosis_ai.services.viewing import viewed_place
from osmosis_ai.viewer.serving import (
    MOST_KEYS,
    ViewerKeys,
    leave_opening_page,
    opening_address,
    remove_opening_page,
)
from tests.viewer.browsing import page_text
from tests.viewer.fake_source import FakeSource, a_run
from tests.workspace.builders import make_workspace

if TYPE_CHECKING:
    from fastapi import FastAPI
    from starlette.testclient import TestClient

HERE = "http://0123456789abcdef.localhost:4321"


@pytest.fixture
def keys() -> ViewerKeys:
    return ViewerKeys()


@pytest.fixture
def app(keys: ViewerKeys) -> FastAPI:
    from osmosis_ai.viewer.serving import viewer_app

    hosts = frozenset({HERE.removeprefix("http://"), "127.0.0.1:4321"})
    return viewer_app(FakeSource([a_run("calm-fern-1")]), keys, hosts=hosts)


def browser(app: FastAPI, url: str = HERE) -> TestClient:
    from starlette.testclient import TestClient

    return TestClient(app, base_url=url, follow_redirects=False)


def opening_path(keys: ViewerKeys, leads_to: str) -> str:
    return opening_address("", keys.make(leads_to))


def test_key_admits_one_browser(app: FastAPI, keys: ViewerKeys) -> None:
    address, mine, theirs = opening_path(keys, "/evals/calm-fern-1"), browser(app), browser(app)
    reply = mine.get(address)
    assert 'content="0;url=/evals/calm-fern-1"' in reply.text and reply.headers["cache-control"] == "no-store"
    cookie = reply.headers["set-cookie"]
    assert (
        "HttpOnly" in cookie
        and "SameSite=strict" in cookie
        and "Max-Age" not in cookie
        and "Domain" not in cookie
    )
    assert "calm-fern-1" in page_text(mine.get("/evals/calm-fern-1"))
    assert theirs.get(address).status_code == 403
    assert mine.get(address).status_code == 200, "who is in already may open a bookmark of it"


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/evals/calm-fern-1",
        "/evals/calm-fern-1/samples.csv",
        "/evals/calm-fern-1/changes",
        "/nothing",
        "/open?key=",
    ],
)
def test_requests_without_a_key(app: FastAPI, path: str) -> None:
    for cookie in (
        {},
        {"cookie": "osmosis_view_4321=guessed"},
        {"cookie": 'osmosis_view_4321="\u00fc'.encode()},
    ):
        reply = browser(app).get(path, headers=cookie)  # type: ignore[arg-type]
        assert reply.status_code == 403 and "calm-fern" not in reply.text


@pytest.mark.parametrize("host", ["evil.example:4321", "127.0.0.1:80", "localhost.evil.example", ""])
def test_foreign_host_names(app: FastAPI, keys: ViewerKeys, host: str) -> None:
    mine = browser(app)
    mine.get(opening_path(keys, "/"))
    assert mine.get("/", headers={"host": host}).status_code == 403


@pytest.mark.parametrize(
    "headers",
    [{}, {"origin": "http://evil.example"}, {"origin": "null"}, {"origin": "http://127.0.0.1:4321"}],
)
def test_foreign_origins(app: FastAPI, keys: ViewerKeys, headers: dict[str, str]) -> None:
    mine = browser(app)
    mine.get(opening_path(keys, "/"))
    assert mine.post("/evals", headers=headers).status_code == 403
    assert mine.post("/evals", headers={"origin": HERE}).status_code == 405


def test_opening_page(tmp_path: Path) -> None:
    from osmosis_ai.viewer.serving import viewer_app

    keys = ViewerKeys()
    key = keys.make("/")
    page = leave_opening_page(tmp_path, opening_address(HERE, key))
    assert page is not None and key not in str(page) and page.stat().st_mode & 0o777 == 0o600
    assert f"url={HERE}/open?key={key}" in page.read_text()
    left = leave_opening_page(tmp_path, opening_address(HERE, "nobody-opened-it"))
    assert left is not None
    os.utime(left, (1, 1))
    hosts = frozenset({HERE.removeprefix("http://")})
    app = viewer_app(FakeSource([]), keys, hosts=hosts, on_opened=partial(remove_opening_page, page.parent))
    assert browser(app).get(f"/open?key={key}").status_code == 200
    assert not page.exists()
    assert leave_opening_page(tmp_path, opening_address(HERE, "another")) is not None and not left.exists()


def test_unused_keys_expire() -> None:
    keys = ViewerKeys()
    first, *_ = [keys.make("/") for _ in range(MOST_KEYS + 1)]
    assert keys.change(first) is None
    assert keys.change(keys.make("/")) is not None


def test_assets_and_unknown_pages(app: FastAPI, keys: ViewerKeys) -> None:
    from osmosis_ai.ui.pages import asset_name, assets

    mine = browser(app)
    sizes = [len(asset.content) for asset in assets().values()]
    assert sum(sizes) < 30_000, sizes
    assert mine.get(f"/assets/{asset_name('viewer.css')}").headers["cache-control"].endswith("immutable")
    assert mine.get("/assets/../entry.py").status_code in (403, 404)
    mine.get(opening_path(keys, "/"))
    assert "There is no page at /nothing" in page_text(mine.get("/nothing"), status=404)


def test_loopback_only_and_port_in_use(tmp_path: Path) -> None:
    from osmosis_ai.viewer.serving import RunningViewer

    for host in ("0.0.0.0", "::", "192.168.1.4", "example.org", "localhost.example.org"):
        with pytest.raises(OsmosisError, match="listens only on this machine"):
            RunningViewer(FakeSource(), cache_dir=tmp_path, host=host)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(OsmosisError, match=f"cannot listen on 127.0.0.1:{port}"):
            RunningViewer(FakeSource(), cache_dir=tmp_path, port=port)


def test_viewed_place_of_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    workspace = make_workspace(tmp_path)
    run = workspace.evals_dir / "calm fern"
    run.mkdir(parents=True)
    (run / "manifest.json").write_text("{}")
    monkeypatch.chdir(workspace.rollouts_dir)
    root = workspace.root.resolve()
    for word in ("calm fern", "calm", str(run), "../.osmosis/evals/calm fern"):
        found = viewed_place(word)
        assert (found.root, found.path) == (root, "/evals/calm%20fern")
    assert viewed_place(None).root == root
    assert viewed_place(".").root == workspace.rollouts_dir.resolve()
    with pytest.raises(NotFoundError, match=r"^Run 'calmfern' not found\.$") as caught:
        viewed_place("calmfern")
    assert caught.value.hint == "did you mean calm fern?"
    with pytest.raises(OsmosisError, match="is a file of a run") as inside:
        viewed_place(str(run / "manifest.json"))
    assert inside.value.hint == f"osmosis view '{run}'"
    config, notes = workspace.root / "smoke.toml", workspace.root / "notes"
    config.write_text("")
    notes.write_text("12345")
    for file in (config, notes):
        with pytest.raises(OsmosisError, match="is not a run, a directory with runs or a rubric result"):
            viewed_place(str(file))
    for word in ("\0", "x" * 5000):
        with pytest.raises(OsmosisError):
            viewed_place(word)
