"""The platform, its database, its store, its model, and two machines that work for it: each can be killed or cut off."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from tests.e2e.platform_process import PROGRAM, Platform
from tests.e2e.relay import Relay
from tests.platform.postgres_server import PostgresCluster
from tests.platform.s3_server import CREDENTIALS, S3Server

from osmosis_ai.services.demo import prepare_scratch

LEASE_S = 3.0
CONFIG = "configs/eval/nightly.toml"
_TOKEN = "nightly.token"
_STARTS_FOR_S = 120.0
_OF_THE_PLATFORM = {"OSMOSIS_DATABASE_URL", "OSMOSIS_BLOBS_URL", *CREDENTIALS}


class Machine:
    """A machine that takes runs of the pool, under a home of its own, by a way of its own to the platform.

    Args:
        world: whose platform it works for.
        name: of its home.
    """

    def __init__(self, world: World, name: str) -> None:
        self.name = name
        self.home = world.scratch.root / name
        self.relay = Relay(int(world.platform.port))
        self.is_cut = False
        self._world = world
        self.start()

    def start(self) -> None:
        """Have it take runs."""
        own = {
            name: words for name, words in self._world.platform.env.items() if name not in _OF_THE_PLATFORM
        }
        own |= {"OSMOSIS_HOME": str(self.home), "OSMOSIS_CACHE_DIR": str(self.home / "cache")}
        words = ["platform", "worker", "--pool", "gpu", "--token-file", _TOKEN, "--url", self.relay.url]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*PROGRAM, *words],
                cwd=self._world.platform.workspace,
                env=own,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    @property
    def log(self) -> Path:
        """What it says."""
        return self._world.scratch.root / f"{self.name}.log"

    @property
    def is_up(self) -> bool:
        """Whether it takes runs."""
        return self.process.poll() is None

    def power_off(self) -> None:
        """End it without a word."""
        self.process.kill()
        self.process.wait()

    def cut(self, *, refuses: bool) -> None:
        """Let nothing through between it and the platform; with ``refuses`` it is told so at once."""
        self.is_cut = True
        self.relay.cut(refuses=refuses)

    def heal(self, *, forgets: bool) -> None:
        """Let everything through again."""
        self.relay.heal(forgets=forgets)
        self.is_cut = False

    def journal(self, run_id: str, name: str) -> list[bytes]:
        """Return the committed lines of its journal of a run; none where it has none."""
        path = self.home / "runs" / run_id / "evaluation" / name / "events.jsonl"
        with suppress(OSError):
            return path.read_bytes().split(b"\n")[:-1]
        return []


class World:
    """All of it, under one directory.

    Args:
        directory: empty, or not there.
        rows, attempts: of the evaluation that is run again and again.
        latency_ms: of the model.
        executor: settings of the platform that say who executes its runs; without any it is the two machines.
        lease_s: how long leases of runs last.
    """

    def __init__(
        self,
        directory: Path,
        *,
        rows: int,
        attempts: int,
        latency_ms: float,
        executor: Mapping[str, str] | None = None,
        lease_s: float = LEASE_S,
    ) -> None:
        self.samples = rows * attempts
        self.machines: list[Machine] = []
        self._pool = "" if executor else '\n[advanced.execution]\npool = "gpu"\n'
        self._model = _started_model(latency_ms)
        assert self._model.stdout is not None
        self.scratch = prepare_scratch(directory)
        self._write_config(rows, attempts, self._model.stdout.readline().strip())
        self.postgres, self.s3 = PostgresCluster(), S3Server()
        self.postgres.start()
        self.s3.start()
        settings = {
            "OSMOSIS_DATABASE_URL": self.postgres.url,
            "OSMOSIS_BLOBS_URL": self.s3.bucket,
            "OSMOSIS_LEASE_SECONDS": f"{lease_s:.0f}",
            **CREDENTIALS,
            **(executor or {}),
        }
        self.platform = Platform(self.scratch, PROGRAM, settings)
        self.platform.command("platform", "connect", str(self.scratch.origin))
        self.platform.command("dataset", "upload", "data/multiply.jsonl", "--wait", "--yes")
        if executor:
            return
        self.platform.command("platform", "worker-token", "create", "--pool", "gpu", "--output", _TOKEN)
        self.machines = [Machine(self, "east"), Machine(self, "west")]

    def _write_config(self, rows: int, attempts: int, model: str) -> None:
        sample = (self.scratch.workspace / "configs/eval/multiply.toml").read_text()
        for key, value in {
            "model_path": '"hosted_vllm/stand-in"',
            "limit": rows,
            "n": attempts,
            "batch_size": 4,
        }.items():
            sample, count = re.subn(rf"(?m)^{key} = \S+", f"{key} = {value}", sample)
            assert count == 1, key
        sample += f'\n[env]\nHOSTED_VLLM_API_BASE = "{model}"\n{self._pool}'
        (self.scratch.workspace / CONFIG).write_text(sample)
        self.scratch.push()

    def start_platform(self) -> None:
        """Start the platform as what watches over services does: again, where it ends because its database is away."""
        until = time.monotonic() + _STARTS_FOR_S
        while True:
            with suppress(ValueError):  # it said nothing
                self.platform.start()
                return
            self.platform.process.wait()
            if time.monotonic() > until:
                raise RuntimeError("the platform does not start; its log says why")
            time.sleep(0.3)  # what watches over services does the same

    def keep_logs(self, directory: Path | None) -> None:
        """Copy what the platform and its machines said, where somebody wants to read it."""
        if directory is not None:
            directory.mkdir(parents=True, exist_ok=True)
            for log in self.scratch.root.glob("*.log"):
                shutil.copy(log, directory)

    def close(self) -> None:
        """End everything that was started here."""
        for machine in self.machines:
            machine.process.send_signal(signal.SIGKILL)
            machine.process.wait()
            machine.relay.close()
        self.platform.process.kill()
        self.platform.process.wait()
        self.postgres.close()
        self.s3.close()
        self._model.kill()
        self._model.wait()


def _started_model(latency_ms: float) -> subprocess.Popen[str]:
    program = Path(__file__).with_name("paced_model.py")
    return subprocess.Popen(
        [sys.executable, str(program), "--latency-ms", f"{latency_ms:g}"], stdout=subprocess.PIPE, text=True
    )
