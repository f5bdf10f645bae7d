"""How `osmosis view` gets its address before the user's eyes: by a browser where one opens windows, else as text."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Cli
from tests.workspace.builders import make_workspace

ADDRESS = re.compile(r" are at http://[^/\s]+:(\d+)/open\?key=\S+")
IS_SHOWN = "Your browser should show it now."


@pytest.fixture
def opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The pages that were opened, by a viewer that is asked to end as soon as it has said where it is."""
    pages: list[str] = []
    monkeypatch.setattr("webbrowser.open", lambda page: pages.append(page) or True)  # type: ignore[func-returns-value]
    monkeypatch.setattr(
        "osmosis_ai.viewer.serving.server.RunningViewer.run", lambda viewer: viewer.listener.close()
    )
    monkeypatch.setattr(sys, "platform", "linux")
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER", "SSH_CONNECTION", "SSH_TTY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OSMOSIS_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.chdir(make_workspace(tmp_path / "here").root)
    return pages


def test_without_a_display_no_browser_is_opened_and_the_address_is_printed(
    cli: Cli, opened: list[str]
) -> None:
    result = cli("view")
    assert (result.status, opened) == (0, [])
    assert ADDRESS.search(result.out) and IS_SHOWN not in result.err and "ssh" not in result.err
    assert "Ctrl-C" in result.err


def test_with_a_display_the_page_that_leads_to_the_address_is_opened(
    cli: Cli, opened: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DISPLAY", ":0")
    result = cli("view")
    assert (result.status, len(opened)) == (0, 1)
    assert opened[0].startswith("file://") and IS_SHOWN in result.err and ADDRESS.search(result.out)


@pytest.mark.parametrize("name", ["SSH_CONNECTION", "SSH_TTY"])
def test_over_ssh_no_browser_is_opened_there_and_the_way_to_the_port_is_said(
    cli: Cli, opened: list[str], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(name, "somewhere")
    # As after `ssh -X`: a window would open, slowly, from the other machine.
    monkeypatch.setenv("DISPLAY", "localhost:10.0")
    result = cli("view")
    assert (result.status, opened) == (0, [])
    address = ADDRESS.search(result.out)
    assert address is not None and IS_SHOWN not in result.err
    assert f"ssh -N -L {address[1]}:127.0.0.1:{address[1]} " in " ".join(result.err.split())


@pytest.mark.parametrize(("host", "shown"), [("::1", "[::1]"), ("127.0.0.2", "127.0.0.2")])
def test_over_ssh_the_port_is_taken_at_the_address_that_the_browser_is_given(
    cli: Cli, opened: list[str], monkeypatch: pytest.MonkeyPatch, host: str, shown: str
) -> None:
    monkeypatch.setenv("SSH_TTY", "somewhere")
    result = cli("view", "--host", host)
    address = ADDRESS.search(result.out)
    if address is None and "cannot listen on [::1]" in result.err:
        pytest.skip("this machine has no IPv6")
    assert address is not None and f"http://{shown}:{address[1]}/" in result.out
    said = " ".join(result.err.split())
    assert f"ssh -N -L {shown}:{address[1]}:{shown}:{address[1]} " in said
    # No name leads there that no other server has.
    assert f"Its cookie is of {shown}, which" in said
