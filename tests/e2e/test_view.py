"""The viewer of this machine as a process: opened, found again, and ended."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from pathlib import Path

import httpx
import pytest

from tests.warm_osmosis import warm_osmosis
from tests.workspace.builders import make_workspace

pytestmark = pytest.mark.e2e


def test_a_viewer_opens_once_for_each_key_is_found_again_and_ends_with_ctrl_c(tmp_path: Path) -> None:
    place = make_workspace(tmp_path).root
    environment = {**os.environ, "OSMOSIS_CACHE_DIR": str(tmp_path / "cache")}
    words = [*warm_osmosis(), "--json", "view", "--no-open"]
    with subprocess.Popen(
        words, cwd=place, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as first:
        try:
            assert first.stdout is not None
            address = json.loads(first.stdout.readline())["resource"]["url"]
            with httpx.Client(trust_env=False, timeout=300) as browser:
                # The port is taken before the address is said, so there is nothing to wait for.
                here = _by_number(address)
                assert browser.get(f"{here.partition('/open')[0]}/").status_code == 403
                assert browser.get(here).status_code == 200
                assert "osmosis eval run" in browser.get(f"{here.partition('/open')[0]}/evals").text

            again = subprocess.run(
                words, cwd=place, env=environment, capture_output=True, text=True, timeout=300, check=True
            )
            found = json.loads(again.stdout)["resource"]
            assert found["already_open"] and found["url"] != address
            assert httpx.get(_by_number(found["url"]), trust_env=False, timeout=300).status_code == 200
        finally:
            first.send_signal(signal.SIGINT)
            status = first.wait(300)
    assert status == 0
    assert list((tmp_path / "cache" / "viewers").iterdir()) == []


def _by_number(address: str) -> str:
    return re.sub(r"//[^:/]+", "//127.0.0.1", address)
