"""A workspace whose model is a stand-in, and the command line in processes of its own."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable
from pathlib import Path

from tests.cli.outcome import Outcome
from tests.evaluation.rollouts import write_rollout, write_rows
from tests.full_disk import NO_CACHED_CODE
from tests.standin_model import StandInModel
from tests.warm_osmosis import warm_osmosis
from tests.workspace.builders import MINIMAL_EVAL, make_workspace

CONFIG = "configs/eval/multiply.toml"


class World:
    """A workspace whose model is a stand-in, and the command line in processes of its own."""

    def __init__(self, root: Path, model: StandInModel) -> None:
        self.model = model
        self.program = warm_osmosis()
        self.workspace = make_workspace(root / "workspace")
        (self.workspace.root / CONFIG).write_text(MINIMAL_EVAL)
        write_rollout(self.workspace.rollouts_dir / "multiply")
        self.rows(["one", "two", "three"])

    def rows(self, prompts: list[str]) -> None:
        write_rows(self.workspace.data_dir / "multiply.jsonl", prompts)

    async def start(
        self, *arguments: str, prepare: Callable[[], None] | None = None
    ) -> asyncio.subprocess.Process:
        environment = {
            **os.environ,
            "OPENAI_API_KEY": "sk-stand-in",
            "OPENAI_BASE_URL": self.model.base_url,
            "OSMOSIS_CACHE_DIR": str(self.workspace.root.parent / "cache"),
            **NO_CACHED_CODE,
        }
        return await asyncio.create_subprocess_exec(
            *([sys.executable, "-m", "osmosis_ai"] if prepare else self.program),
            "eval",
            *arguments,
            cwd=self.workspace.root,
            env=environment,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            preexec_fn=prepare,
        )

    async def osmosis(self, *arguments: str, prepare: Callable[[], None] | None = None) -> Outcome:
        process = await self.start(*arguments, prepare=prepare)
        out, err = await asyncio.wait_for(process.communicate(), 300)
        assert process.returncode is not None
        return Outcome(process.returncode, out.decode(), err.decode())

    async def run(self, *arguments: str, prepare: Callable[[], None] | None = None) -> Outcome:
        return await self.osmosis("run", CONFIG, "--yes", "--json", *arguments, prepare=prepare)

    async def wait_for_records(self, count: int) -> None:
        """Wait until the runs have so many results."""
        journals = self.workspace.evals_dir

        async def look() -> None:
            while sum(path.read_bytes().count(b"\n") for path in journals.glob("*/events.jsonl")) < count:  # noqa: ASYNC110
                await asyncio.sleep(0.02)

        await asyncio.wait_for(look(), 300)
