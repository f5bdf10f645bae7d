"""Uploads of local runs: what is cut off or asked for at once loses nothing."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi.testclient import TestClient

from tests.platform.conftest import ManualClock
from tests.platform.local_runs import IMPORTS, LocalRun
from tests.platform.platform_parts import PlatformServices

DAY_S = 24 * 3600


class KilledError(BaseException):
    """The platform ends here and does nothing more."""


def test_files_of_an_upload_that_was_being_forgotten_when_the_platform_was_killed_go_later(
    api: TestClient, services: PlatformServices, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = LocalRun()
    run.send(api, api.post(IMPORTS, json=run.start()).json()["session_id"])
    assert len(list(services.blobs.keys("runs"))) == len(run.files)
    clock.advance(DAY_S + 1)

    def killed(_: str) -> None:
        raise KilledError

    with monkeypatch.context() as patched:
        patched.setattr(services.blobs, "delete_below", killed)
        with pytest.raises(KilledError):
            services.eval_imports.tidy()
    assert list(services.blobs.keys("runs"))
    services.eval_imports.tidy()
    services.runs.finish_deletions()
    assert list(services.blobs.keys("runs")) == []


def test_an_upload_that_became_a_run_while_it_was_about_to_be_forgotten_keeps_its_files(
    api: TestClient, services: PlatformServices, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = LocalRun()
    session = api.post(IMPORTS, json=run.start()).json()["session_id"]
    run.send(api, session)
    forget = services.eval_imports._forget

    def slowly(row: Any) -> None:
        # Its end was asked for in time, and took until now.
        clock.jump(-60)
        assert api.post(f"{IMPORTS}/{session}/finalize", json={}).status_code == 200
        clock.jump(60)
        forget(row)

    clock.advance(DAY_S + 1)
    monkeypatch.setattr(services.eval_imports, "_forget", slowly)
    services.eval_imports.tidy()
    services.runs.finish_deletions()
    assert len(list(services.blobs.keys("runs"))) >= len(run.files)
    asked = api.post(
        f"/api/cli/eval-runs/{run.name}/samples/download-urls", json={"items": [{"path": "summary.jsonl"}]}
    )
    assert len(api.get(asked.json()["items"][0]["url"]).text.splitlines()) == 6
