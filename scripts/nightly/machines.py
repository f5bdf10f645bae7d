"""A platform, its database, its file store, a model, and two worker machines; each can be killed or cut off."""

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
    """A worker machine of the pool, with its own data directory and its own connection to the platform."""

    def __init__(self, world: World, name: str) -> None:
        self.name = name
        self.home = world.scratch.root / name
        self.relay = Relay(int(world.platform.port))
        self.is_cut = False
        self._world = world
        self.start()

    def start(self) -> None:
        """Start its host."""
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
        """The output of its host."""
        return self._world.scratch.root / f"{self.name}.log"

    @property
    def is_up(self) -> bool:
        """Whether its host is running."""
        return self.process.poll() is None

    def power_off(self) -> None:
        """Kill its host."""
        self.process.kill()
        self.process.wait()

    def cut(self, *, refuses: bool) -> None:
        """Cut it off from the platform; with ``refuses``, connections fail at once."""
        self.is_cut = True
        self.relay.cut(refuses=refuses)

    def heal(self, *, forgets: bool) -> None:
        """Restore its connection."""
        self.relay.heal(forgets=forgets)
        self.is_cut = False

    def executes(self, shard_id: str, run_name: str) -> bool:
        """Whether a shard on this machine belongs to the run."""
        return self._evaluation(shard_id, run_name).exists()

    def journal(self, run_name: str) -> list[bytes]:
        """Return the committed lines of this machine's journal of a run."""
        for path in self.home.glob(
            str(self._evaluation("*", run_name).relative_to(self.home) / "events.jsonl")
        ):
            with suppress(OSError):
                return path.read_bytes().split(b"\n")[:-1]
        return []

    def _evaluation(self, shard_id: str, run_name: str) -> Path:
        return self.home / "runs" / shard_id / "evaluation" / run_name


class World:
    """All parts, under one directory.

    Args:
        directory: Empty or missing.
        rows, attempts: The size of the evaluation that is executed repeatedly.
        latency_ms: The latency of the model.
        executor: Settings of the platform's executor; if None, two worker machines execute the runs.
        lease_s: The lease of the platform.
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
        """Start the platform, repeatedly while its database is unavailable, like a service manager."""
        until = time.monotonic() + _STARTS_FOR_S
        while True:
            with suppress(ValueError):  # it ended without a URL
                self.platform.start()
                return
            self.platform.process.wait()
            if time.monotonic() > until:
                raise RuntimeError("the platform does not start; see platform.log")
            time.sleep(0.3)

    def keep_logs(self, directory: Path | None) -> None:
        """Copy the logs of the platform and the machines, if a directory is given."""
        if directory is not None:
            directory.mkdir(parents=True, exist_ok=True)
            for log in self.scratch.root.glob("*.log"):
                shutil.copy(log, directory)

    def close(self) -> None:
        """End all processes."""
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
