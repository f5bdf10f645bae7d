"""Kills nodes and the head of a Ray cluster that executes a platform's runs."""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from tests.e2e.platform_process import Run
from tests.platform.real_ray import HEAD, RAY, RealRay

from nightly.machines import CONFIG, World
from nightly.verdicts import Ledger, RunWatch, Verdicts

_LOOK_S = 0.2
_NODES = 2
_STUCK_S = 600.0
"""The maximum time without progress: a cluster needs minutes to restart after its head was killed."""


class RayFaults:
    """Kills parts of a cluster in mid-run; ``sizes`` are arguments of :class:`~nightly.machines.World`."""

    def __init__(
        self, directory: Path, cluster: RealRay, verdicts: Verdicts, sizes: Mapping[str, float]
    ) -> None:
        executor = {
            "OSMOSIS_EXECUTOR": "ray",
            "OSMOSIS_RAY_ADDRESS": cluster.cluster.address,
            "OSMOSIS_RAY_TOKEN_FILE": str(cluster.token_file),
        }
        self.world = World(directory, executor=executor, **sizes)  # type: ignore[arg-type]
        self._cluster = cluster
        self._verdicts = verdicts
        self._ledger = Ledger(self.world.postgres.url)
        self._nodes: list[str] = []
        self._started = 0
        self._seen: object = None
        self._changed_at = time.monotonic()

    def close(self) -> None:
        """End the platform."""
        self._ledger.close()
        self.world.close()

    def run(self, kinds: list[str], draw: random.Random, until: float) -> list[str]:
        """Inject each fault in the middle of a run; return those for which there was no time."""
        calm = self._submit()
        while not calm.is_over:
            self._look(calm)
        self._fetch(calm)
        print(f"  the undisturbed run is {calm.status}", flush=True)
        watch, mark = self._submit(), 0
        while kinds and time.monotonic() < until:
            if watch.is_over:
                self._compare(watch, calm.run)
                watch, mark = self._submit(), 0
            self._look(watch)
            if len(watch.accepted) >= mark + draw.randrange(5, 20) and (node := self._node_of(watch)):
                mark = len(watch.accepted)
                self._fall(kinds.pop(0), node, watch)
        while not watch.is_over:
            self._look(watch)
        self._compare(watch, calm.run)
        return kinds

    def _node_of(self, watch: RunWatch) -> str | None:
        """Return the node that executes a run."""
        program = f"worker\0--run\0{watch.run.id}"
        return next((name for name in self._nodes if self._cluster.processes(program, name)), None)

    def _fall(self, kind: str, node: str, watch: RunWatch) -> None:
        at, attempt, began = len(watch.accepted), watch.attempt, time.monotonic()
        if kind == "raylet":
            self._cluster.kill("raylet/raylet", node)
            self._nodes.remove(node)
        else:
            self._cluster.kill_head()
            self._cluster.start_head()
            self._nodes.clear()  # they do not find their cluster and end by themselves
        tally, watch.last_kind = self._verdicts.of(kind), kind
        tally.done, tally.counted = tally.done + 1, tally.counted + (0 < at < self.world.samples)
        print(f"  {kind} at {at} of {self.world.samples} of {watch.run.name}", flush=True)
        answered_at = None
        while watch.attempt == attempt and not watch.is_over:
            self._look(watch)
            if answered_at is None and self._cluster.answers():
                answered_at = time.monotonic()
        if watch.attempt > attempt:
            took_s = time.monotonic() - began
            tally.takeovers.append(took_s)
            away_s = took_s if answered_at is None else answered_at - began
            print(
                f"  {watch.run.name} continues after {took_s:.1f} s; the cluster answered again after {away_s:.1f} s",
                flush=True,
            )

    def _start_node(self) -> None:
        self._started += 1
        name = f"node-{self._started}"
        self._nodes.append(name)
        self._cluster.start_node(name)

    def _start_what_ended(self) -> None:
        """Restart nodes that ended: on a busy machine, Ray's start timeout of 30 s may be exceeded."""
        if not self._cluster.is_up(HEAD):
            self._cluster.kill_head()
            self._cluster.start_head()
        self._nodes = [name for name in self._nodes if self._cluster.is_up(name)]
        while len(self._nodes) < _NODES and self._cluster.answers():
            self._start_node()

    def _submit(self) -> RunWatch:
        return RunWatch(self.world.platform.submit(CONFIG), self._verdicts)

    def _look(self, watch: RunWatch) -> None:
        self._start_what_ended()
        if (row := self._ledger.read(watch.run.id)) is not None:
            state = watch.run.id, row.status, row.attempt, len(row.accepted)
            if state != self._seen:
                self._seen, self._changed_at = state, time.monotonic()
            watch.update(row)
        if time.monotonic() - self._changed_at > _STUCK_S:
            raise RuntimeError(f"{watch.run.name} makes no progress, at {len(watch.accepted)}")
        time.sleep(_LOOK_S)

    def _fetch(self, watch: RunWatch) -> None:
        words = ["eval", "download", watch.run.name, "--yes", "--type", "metrics,trajectories,journal"]
        self.world.platform.command(*words)

    def _compare(self, watch: RunWatch, calm: Run) -> None:
        if watch.status != "finished":
            self._verdicts.violate(f"{watch.run.name} ended as {watch.status}")
            return
        self._fetch(watch)
        watch.compare(calm, self.world.samples)
        print(f"  compared {watch.run.name} (attempt {watch.attempt})", flush=True)


def run_on_ray(
    counts: Mapping[str, int],
    draw: random.Random,
    verdicts: Verdicts,
    *,
    until: float,
    sizes: Mapping[str, float],
) -> None:
    """Kill raylets and heads in mid-run; prints why not without Ray."""
    if RAY is None:
        print("Ray is not installed (`pip install '.[ray]'`)")
        return
    kinds = [kind for kind, count in sorted(counts.items()) for _ in range(count)]
    draw.shuffle(kinds)
    # Paths of Unix sockets must be short.
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp", ignore_cleanup_errors=True) as name:
        directory = Path(name)
        own = {"OSMOSIS_HOME": str(directory / "home"), "OSMOSIS_CACHE_DIR": str(directory / "cache")}
        cluster = RealRay(directory, own, cpus=0)
        try:
            while not cluster.answers():
                if not cluster.is_up(HEAD):
                    cluster.start_head()
                time.sleep(_LOOK_S)
            print("the cluster answers", flush=True)
            faults = RayFaults(directory / "demo", cluster, verdicts, sizes)
            try:
                left = faults.run(kinds, draw, until)
            finally:
                faults.close()
        finally:
            cluster.close()
    if left:
        verdicts.violate(f"{len(left)} faults of the cluster were not injected in time")
