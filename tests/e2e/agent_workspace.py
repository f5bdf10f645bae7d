"""A sample workspace with one more agent, and commands as processes in it."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from osmosis_ai.workspace.rollout_templates import copy_sample_workspace as copy_sample_workspace
from tests.evaluation.rollouts import write_rollout, write_rows
from tests.standin_model import StandInModel
from tests.warm_osmosis import warm_osmosis

CONFIG = "configs/eval/agent.toml"
EXPERIMENT = {"rollout": "agent", "entrypoint": "main.py", "model_path": "openai/stand-in", "dataset": "rows"}
KEY = "sk-stand-in-0123456789"


class Outcome(NamedTuple):
    status: int
    out: str
    err: str

    @property
    def error(self) -> str:
        """The text from ``Error:`` on, without the stages before it."""
        return self.err[self.err.index("Error: ") :]

    @property
    def envelope(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.err)["error"]
        return found

    @property
    def resource(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.out)["resource"]
        return found


class World:
    """A sample workspace with one more agent, whose model is a stand-in."""

    def __init__(self, root: Path, model: StandInModel) -> None:
        self.root = copy_sample_workspace(root / "workspace").root
        self.model = model
        self.elsewhere = root / "elsewhere"
        self.elsewhere.mkdir()
        self.agent = write_rollout(self.root / "rollouts" / "agent")
        self.environment = {
            **os.environ,
            "OPENAI_API_KEY": KEY,
            "OPENAI_BASE_URL": model.base_url,
            "OSMOSIS_CACHE_DIR": str(root / "cache"),
        }
        self.rows("one", "two")
        self.config()

    def rows(self, *prompts: str) -> None:
        write_rows(self.root / "data" / "rows.jsonl", list(prompts))

    def config(self, *, timeout_s: float = 60, **experiment: str) -> None:
        lines = [f'{key} = "{value}"' for key, value in {**EXPERIMENT, **experiment}.items()]
        timeouts = f"agent_workflow_timeout_s = {timeout_s}\ngrader_timeout_s = {timeout_s}\n"
        text = "[experiment]\n" + "\n".join(lines) + f"\n[evaluation]\n{timeouts}[secrets]\nrequired = []\n"
        (self.root / CONFIG).write_text(text)

    async def start(
        self,
        *arguments: str,
        cwd: Path | None = None,
        prepare: Callable[[], None] | None = None,
        **environment: str | None,
    ) -> asyncio.subprocess.Process:
        wanted = {**self.environment, **environment}
        return await asyncio.create_subprocess_exec(
            # What `prepare` limits is limited in the process that it is called in.
            *([sys.executable, "-m", "osmosis_ai"] if prepare else warm_osmosis()),
            *arguments,
            cwd=cwd or self.root,
            env={name: value for name, value in wanted.items() if value is not None},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            preexec_fn=prepare,
        )

    async def osmosis(self, *arguments: str, **started: Any) -> Outcome:
        return await self.end_of(await self.start(*arguments, **started))

    async def end_of(self, process: asyncio.subprocess.Process) -> Outcome:
        out, err = await asyncio.wait_for(process.communicate(), 600)
        assert process.returncode is not None
        return Outcome(process.returncode, self.shown(out), self.shown(err))

    async def run(self, *arguments: str, **started: Any) -> Outcome:
        return await self.osmosis("eval", "run", CONFIG, "--yes", "--plain", *arguments, **started)

    def shown(self, raw: bytes) -> str:
        text = raw.decode().replace(str(self.root), "WS")
        return re.sub(r"(WS/)?\.osmosis/evals/[\w.-]*\w", "RUN", text)

    @property
    def runs(self) -> list[Path]:
        evals = self.root / ".osmosis" / "evals"
        return [path for path in sorted(evals.glob("*")) if path.name != ".locks"]

    def records(self) -> list[dict[str, Any]]:
        """Return the records of all journals, without an incomplete last line."""
        journals = [(run / "events.jsonl").read_bytes() for run in self.runs]
        return [json.loads(line) for journal in journals for line in journal.split(b"\n")[:-1]]

    def assert_nothing_half_written(self) -> None:
        """Check that all files of the runs are complete, and that there are no others."""
        for run in self.runs:
            for path in run.rglob("*"):
                assert ".tmp" not in path.name, path
                if path.suffix == ".json":
                    json.loads(path.read_text())
                elif path.suffix == ".jsonl" and path.read_bytes():
                    assert path.read_bytes().endswith(b"\n"), path
                    [json.loads(line) for line in path.read_text().splitlines()]
        touched = subprocess.run(
            ["git", "status", "--porcelain"], cwd=self.root, capture_output=True, text=True, check=True
        ).stdout
        assert set(touched.splitlines()) <= {f"?? {CONFIG}", "?? data/rows.jsonl", "?? rollouts/agent/"}

    def assert_not_begun(self) -> None:
        assert self.runs == []
        assert self.model.calls == 0

    def assert_stopped_before_the_first_row(self) -> None:
        assert self.records() == []
        assert not list(self.root.glob(".osmosis/evals/*/rollout_trials/*"))
        self.assert_nothing_half_written()
