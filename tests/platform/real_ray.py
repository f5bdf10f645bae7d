"""A real Ray cluster on this machine: a head, further nodes, and `kill -9` of everything that belongs to one of them."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from osmosis_ai.platform.config import RayCluster
from osmosis_ai.platform.ray_jobs import RayError, RayJobs
from osmosis_ai.processes.service import free_port

_PROGRAMS = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
RAY = shutil.which("ray", path=_PROGRAMS)
HEAD = "head"


class RealRay:
    """A head and further nodes, each a process of its own.

    ``commands`` has the commands of jobs, by run.

    Args:
        directory: Its path must be short, because it contains sockets.
        settings: Further variables of the environment of every node, and so of its jobs.
        cpus: Processors of the head; with 0, jobs run on the other nodes only.
    """

    def __init__(self, directory: Path, settings: Mapping[str, str] | None = None, *, cpus: int = 2) -> None:
        self.directory = directory
        self.token_file = directory / "token"
        self.token_file.write_text("a-token-that-is-long-enough-for-ray-to-take")
        self.port, self._dashboard, self._clients = free_port(), free_port(), free_port()
        self.cluster = RayCluster(f"http://127.0.0.1:{self._dashboard}", self.token_file)
        self.commands: dict[str, str] = {}
        self.jobs = RayJobs(self.cluster, lambda job: self.commands[job.run_id])
        self._settings = dict(settings or {})
        self._cpus = cpus
        self._nodes: dict[str, subprocess.Popen[bytes]] = {}
        self.start_head()

    def start_head(self) -> None:
        """Start the head, also after it was killed; its ports stay the same."""
        self.start(
            "--head", f"--port={self.port}", "--dashboard-host=127.0.0.1", f"--dashboard-port={self._dashboard}",
            f"--ray-client-server-port={self._clients}", f"--num-cpus={self._cpus}", f"--temp-dir={self.directory}/t",
            name=HEAD,
        )  # fmt: skip

    def start(self, *options: str, name: str = "") -> None:
        """Start a node, whose processes are found by ``name``."""
        assert RAY is not None
        environment = {
            **os.environ,
            **self._settings,
            "PATH": _PROGRAMS,
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": str(self.token_file),
            "_OSMOSIS_TEST_CLUSTER": str(self.directory),
            "_OSMOSIS_TEST_NODE": name,
        }
        # With Ray's default port, a new head would accept no jobs while an agent of the previous cluster still ends.
        agent = f"--dashboard-agent-listen-port={free_port()}"
        command = [RAY, "start", "--block", "--disable-usage-stats", "--object-store-memory=80000000", agent]
        with (self.directory / "ray.log").open("ab") as log:
            process = subprocess.Popen([*command, *options], env=environment, stdout=log, stderr=log)
        self._nodes[name] = process

    def start_node(self, name: str) -> None:
        """Start a node with one processor."""
        self.start(f"--address=127.0.0.1:{self.port}", "--num-cpus=1", name=name)

    def processes(self, program: str = "", node: str | None = None) -> list[int]:
        """Return the processes of this cluster, or of one node, by their environment, and the processes they started.

        Some of Ray's programs overwrite their environment, so children are included.
        """
        marks = [f"_OSMOSIS_TEST_CLUSTER={self.directory}".encode()]
        marks += [] if node is None else [f"_OSMOSIS_TEST_NODE={node}".encode()]
        commands: dict[int, str] = {}
        parents: dict[int, int] = {}
        found: set[int] = set()
        for directory in Path("/proc").iterdir():
            if directory.name.isdigit():
                process = int(directory.name)
                try:
                    environment = (directory / "environ").read_bytes().split(b"\0")
                    commands[process] = (directory / "cmdline").read_bytes().decode(errors="replace")
                    parents[process] = int((directory / "stat").read_text().rpartition(")")[2].split()[1])
                except OSError:
                    continue  # it has ended, or is another user's
                if all(mark in environment for mark in marks):
                    found.add(process)
        while more := {process for process, parent in parents.items() if parent in found} - found:
            found |= more
        return [process for process in found if program in commands[process]]

    def kill(self, program: str, node: str | None = None) -> None:
        """Kill everything with this in its command."""
        for process in self.processes(program, node):
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)

    def is_up(self, name: str) -> bool:
        """Return whether a node was started and has not ended."""
        return name in self._nodes and self._nodes[name].poll() is None

    def kill_head(self) -> None:
        """Kill all processes of the head."""
        self.kill("", HEAD)
        self._nodes[HEAD].wait(60)

    def close(self) -> None:
        """Kill everything."""
        self.jobs.close()
        self.kill("")
        for node in self._nodes.values():
            node.wait(60)

    def answers(self) -> bool:
        """Return whether the cluster accepts jobs."""
        try:
            self.jobs.list()
        except RayError:
            return False
        return True
