"""A platform for a browser: one workspace with one of everything, its names and texts as bad as they get."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from osmosis_ai.controller.record import TerminalRecord
from osmosis_ai.platform.config import PlatformConfig
from osmosis_ai.platform.db.tables import DbLoraModel, DbMetricPoint, DbRun
from osmosis_ai.platform.server import run_platform
from osmosis_ai.platform.services import PlatformServices
from osmosis_ai.training.runs.run_directory import ValidationSamples
from tests.browser.site import HOSTILE, LONG
from tests.logins import hash_passwords_quickly
from tests.platform.conftest import Member, World
from tests.platform.databases import put_migrated_database
from tests.platform.evaluations import Code, add_dataset, end_with, put_mirror, submit_body, training_body
from tests.platform.viewer.runs_world import REQUEST, PlatformPlace, add_file, add_run, add_samples
from tests.viewer.builders import STEPS, trajectory
from tests.viewer.source_contract import sample_record

PASSWORD = "correct horse battery"
CANARY = "sk-canary-4711"
# A name of 255 characters, which is as long as one may be.
NAME = f"a/b {HOSTILE} ünï {LONG}"[:255]
EVAL_RUNS = "/api/cli/eval-runs"


@dataclass
class PlatformSite:
    """A platform that answers.

    Attributes:
        base: its address.
        mara: owner of the workspace `fern`, and of another one.
        noa: a member of it.
        runs: names of evaluations by how they stand: `done`, of which a sample failed, and `waiting`.
    """

    base: str
    services: PlatformServices
    mara: Member
    noa: Member
    runs: dict[str, str]

    def session(self, member: Member) -> Any:
        """Return what a browser keeps of somebody who has signed in."""
        _, plain = self.services.accounts.create_token(member.user.id, "web", name="browser")
        domain = self.base.partition("://")[2].partition(":")[0]
        cookie = {"name": "osmosis_session", "value": plain, "domain": domain, "path": "/"}
        more = {"expires": -1, "httpOnly": True, "secure": False, "sameSite": "Lax"}
        return {"cookies": [{**cookie, **more}], "origins": []}

    def submit(self, **changes: Any) -> str:
        """Submit an evaluation, which nobody executes, and return its name; ``changes`` are sections of it."""
        reply = httpx.post(
            self.base + EVAL_RUNS,
            json=submit_body(**changes),
            headers=self.mara.headers,
            trust_env=False,
            timeout=60,
        )
        assert reply.status_code == 200, reply.text
        return str(reply.json()["name"])

    def log_of(self, name: str) -> str:
        """Return what a run's log says."""
        run = self.services.runs.get(self.mara.workspace.id, "eval", name)
        return "\n".join(line.message or "" for line in self.services.logs.page(run.id, limit=50).logs)

    def pages(self) -> Mapping[str, str]:
        """Return every page of the platform for who has signed in, by what it is."""
        below = f"/fern/evals/{quote(NAME, safe='')}"
        done, waiting = (f"/fern/evals/{self.runs[name]}" for name in ("done", "waiting"))
        device = self.services.device_logins.start(HOSTILE[:100])[0].user_code
        ports = f"state=s&port=8976&device_name={quote(HOSTILE[:100])}"
        return {
            "workspaces": "/",
            "all runs": "/fern",
            "evaluations": "/fern/evals",
            "no evaluations": "/fern/evals?q=nothing-has-this-name",
            "evaluation": below,
            "samples": f"{below}/samples",
            "samples by row": f"{below}/samples?group=row&outcome=failed",
            "conversation": f"{below}/samples/0.0",
            "conversation that is lost": f"{below}/samples/1.0",
            "two conversations": f"{below}/samples/0.0?with=1.0",
            "log": f"{below}/log",
            "comparison": f"/fern/compare?run={self.runs['done']}&run={quote(NAME, safe='')}",
            "trainings": "/fern/training",
            "training": "/fern/training/learning",
            "conversation of a validation": "/fern/training/learning/validation/5.0",
            "datasets": "/fern/datasets",
            "dataset": f"/fern/datasets/{quote(NAME, safe='')}",
            "models": "/fern/models",
            "model": "/fern/models/learning-5",
            "secrets": "/fern/secrets",
            "repositories": "/fern/integrations/git",
            "tokens and sessions": "/fern/api-keys",
            "members": "/fern/members",
            "stop?": f"{waiting}/stop",
            "retry?": f"{done}/retry",
            "submit again?": f"{done}/resubmit",
            "what can not be submitted again": f"{below}/resubmit",
            "code of a device": "/device",
            "device": f"/device?code={device}",
            "client": f"/cli-auth?{ports}",
            "no client": "/cli-auth",
            "no such run": "/fern/evals/nothing-here",
            "no such workspace": "/nowhere/evals",
            "a filter without sense": "/fern/evals?since=yesterday",
            "a page without sense": "/fern/datasets?page=first",
        }


@contextmanager
def platform_site(scratch: Path) -> Iterator[PlatformSite]:
    """Run a platform in this process, and fill it."""
    put_migrated_database(scratch / "platform")
    with pytest.MonkeyPatch.context() as patch:
        hash_passwords_quickly(patch)
        patch.setattr("osmosis_ai.platform.routes.models.is_servable", lambda _model: True)
        with run_platform(PlatformConfig(home=scratch / "platform", port=0, executor_slots=0)) as platform:
            services, world = platform.services, World(platform.services)
            code = str(Code(scratch / "code").path)
            mara = world.member(password=PASSWORD, clone_url=code)
            put_mirror(world, mara)
            noa = world.member("noa", role="member", clone_url=code)
            site = PlatformSite(platform.config.base_url, services, mara, noa, {})
            _fill(site)
            yield site


def _fill(site: PlatformSite) -> None:
    services, mara = site.services, site.mara
    world = World(services)
    services.workspaces.add_member(services.workspaces.create("moss").id, mara.user.id, "member")
    add_dataset(world, mara)
    rows = [{f"{key} {HOSTILE}": f"{LONG} {HOSTILE}" for key in range(6)} for _ in range(40)]
    add_dataset(world, mara, NAME, rows=rows)
    add_dataset(world, mara, "broken", status="error", error=HOSTILE)
    services.secrets.put(mara.workspace.id, mara.user.id, "MARAS_KEY", CANARY, "user")
    services.accounts.create_token(mara.user.id, "cli", name=f"{HOSTILE}{LONG}"[:255])
    site.runs["done"] = site.submit()
    done = services.runs.get(mara.workspace.id, "eval", site.runs["done"])
    passed: dict[str, Any] = {"status": "success", "reward": 1.0}
    samples = {(row, attempt): passed for row in range(3) for attempt in range(2)}
    failed = {"status": "failed", "boundary": "provider"}
    end_with(world, done.id, {**samples, (1, 1): failed})
    site.runs["waiting"] = site.submit()
    _hostile_evaluation(site)
    _training(site)


def _hostile_evaluation(site: PlatformSite) -> None:
    world = World(site.services)
    texts = {"input": HOSTILE + LONG, "output": HOSTILE, "error": HOSTILE + LONG, "notes": HOSTILE}
    request = {
        **REQUEST,
        "experiment_config": {"rollout": LONG, "dataset": HOSTILE, LONG: HOSTILE},
        HOSTILE: {"a": HOSTILE},
    }
    run = add_run(world, site.mara, NAME, error=HOSTILE, model_path=LONG[:255], request=request)
    add_samples(
        world,
        run,
        [
            {"row": 0, "attempt": 0, "reward": 0.5, **texts},
            *({"row": row, "attempt": 0, "status": "failed", "category": HOSTILE, **texts} for row in (1, 2)),
        ],
    )
    said = [{"source": "agent", "message": json.dumps({"a": [LONG, HOSTILE]}), "reasoning_content": HOSTILE}]
    add_file(world, run, "trajectories/row_0_run_0.json", trajectory(*STEPS, *said, label=HOSTILE))
    for _ in range(30):
        world.log(run.id, f"{HOSTILE} {LONG}", "warning", step="run")


def _training(site: PlatformSite) -> None:
    services, mara = site.services, site.mara
    place = PlatformPlace(World(services), mara)
    records: list[TerminalRecord] = [
        sample_record(row, 0, row / 8, input=LONG, output=HOSTILE) for row in (5, 6)
    ]
    said = {(5, 0): trajectory(*STEPS, label=HOSTILE), (6, 0): trajectory(*STEPS)}
    place.validate("learning", ValidationSamples.of(records, step=12, pass_threshold=0.75), said)
    run = services.runs.get(mara.workspace.id, "training", "learning")
    now = services.clock.now()
    keys = ("rollout/raw_reward", "train/kl_base", "eval/validation/reward")
    model = DbLoraModel(
        id="m1",
        workspace_id=mara.workspace.id,
        run_id=run.id,
        name="learning-5",
        base_model=LONG[:255],
        step=5,
        files={},
        created_at=now,
    )
    with services.db.transaction() as session:
        session.get_one(DbRun, run.id).request = training_body()
        session.add(model)
        session.add_all(
            DbMetricPoint(run_id=run.id, key=key, step=step, value=step / 9, timestamp=now)
            for key in keys
            for step in range(9)
        )
