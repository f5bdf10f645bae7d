"""A platform as a process has it: one per data directory, reachable when it says so, gone when it has ended."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import stat
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from osmosis_ai.errors import ConflictError, OsmosisError
from osmosis_ai.platform.config import PlatformConfig
from osmosis_ai.platform.process_state import running_platform, stop_platform
from osmosis_ai.platform.server import require_safe_address, run_platform
from osmosis_ai.sandbox.isolation import IsolationSetting, SandboxCapability
from tests.platform.conftest import World
from tests.platform.viewer.runs_world import add_file, add_run


@pytest.fixture
def config(tmp_path: Path) -> PlatformConfig:
    return PlatformConfig(home=tmp_path / "platform", port=0)


def test_a_platform_answers_when_it_is_said_to_run_and_is_gone_afterwards(config: PlatformConfig) -> None:
    with run_platform(config) as platform:
        url = platform.config.base_url
        assert platform.config.port != 0
        assert httpx.get(f"{url}/health").json()["status"] == "ok"
        seen = running_platform(config.home)
        assert seen == platform.process
        assert seen is not None and (seen.pid, seen.url) == (os.getpid(), url)
        state = config.home / "platform.json"
        assert stat.S_IMODE(state.stat().st_mode) == 0o600
        assert stat.S_IMODE(config.home.stat().st_mode) == 0o700
    assert running_platform(config.home) is None
    assert not state.exists()
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{url}/health")


def test_one_data_directory_has_one_platform(config: PlatformConfig) -> None:
    with run_platform(config) as platform:
        with (
            pytest.raises(ConflictError, match=f"already as process {os.getpid()}, at http://127") as refused,
            run_platform(config),
        ):
            pass
        assert refused.value.details["url"] == platform.config.base_url
        assert running_platform(config.home) == platform.process


@pytest.mark.parametrize("setting", ["auto", "off"])
def test_a_platform_of_several_workspaces_that_comes_to_where_no_sandbox_works_asks_its_operator(
    config: PlatformConfig, setting: IsolationSetting, monkeypatch: pytest.MonkeyPatch
) -> None:
    unable = SandboxCapability(problem="no user namespaces", remedy="sysctl -w x=1")
    monkeypatch.setattr("osmosis_ai.platform.isolation.check_sandbox", lambda _home: unable)
    config = replace(config, isolation=setting)
    with run_platform(config) as platform:
        assert platform.services.config.executes_nothing is None
        World(platform.services).member(workspace="moss")
    with run_platform(config) as platform:
        waits = platform.services.config.executes_nothing
        assert (waits is None) == (setting == "off")
        shown = running_platform(config.home)
        assert shown is not None and (waits is None or shown.isolation == waits)
        assert platform.config.executes_nothing == waits


def test_a_note_that_a_killed_platform_left_is_not_believed(config: PlatformConfig) -> None:
    config.prepare_home()
    (config.home / "platform.lock").touch()
    note = {"pid": os.getpid(), "started_at": "2026-11-02T09:30:00+00:00", "version": "0.3.10", "url": None}
    (config.home / "platform.json").write_text(json.dumps({**note, "local_url": None}))
    assert running_platform(config.home) is None
    assert stop_platform(config.home, timeout_s=1) is None


def test_a_taken_port_is_named_and_leaves_the_directory_free(config: PlatformConfig) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with (
            pytest.raises(OsmosisError, match=f"port {port}") as refused,
            run_platform(replace(config, port=port)),
        ):
            pass
        assert "--port" in (refused.value.hint or "")
    assert running_platform(config.home) is None


def test_it_waits_for_a_signal_and_leaves_the_handlers_as_they_were(config: PlatformConfig) -> None:
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    with run_platform(config) as platform:
        os.kill(os.getpid(), signal.SIGTERM)
        platform.wait()
        # A second signal ends the process at once.
        assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before
        assert httpx.get(f"{platform.config.base_url}/health").is_success


def test_a_start_without_the_files_that_its_database_names_says_so(
    config: PlatformConfig, caplog: pytest.LogCaptureFixture
) -> None:
    with run_platform(config) as platform:
        world = World(platform.services)
        member = world.member()
        for number in range(20):
            key = f"runs/run-{number}/journal"
            world.store(key, b"x")
            run = add_run(world, member, f"run-{number}", journal_blob=key)
            add_file(world, run, "trajectories/row_0_run_0.json", b"{}")
    with run_platform(config) as platform:
        assert not any("sampled files" in warning for warning in platform.process.warnings)
    shutil.rmtree(config.blobs_dir)
    with run_platform(config) as platform:
        [warning] = platform.process.warnings
        assert warning.startswith("20 of 20 sampled files of datasets, runs and adapters are missing from")
        assert "OSMOSIS_BLOBS_URL" in warning and warning in caplog.text
        assert running_platform(config.home) == platform.process


def test_an_insecure_public_url_needs_to_be_allowed(
    config: PlatformConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    exposed = replace(config, host="0.0.0.0", public_url="http://osmosis.example:8733")
    with pytest.raises(OsmosisError, match="Insecure platform URL"):
        require_safe_address(exposed)
    monkeypatch.setenv("OSMOSIS_ALLOW_INSECURE_PLATFORM_URL", "1")
    require_safe_address(exposed)
