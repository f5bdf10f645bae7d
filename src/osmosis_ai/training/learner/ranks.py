"""Learner processes for additional GPUs, as children of the trainer.

The trainer is rank 0 and sends commands (:mod:`distributed`). The children end with it. The death of a child is noticed
immediately and reported with the end of its log.

    python -m osmosis_ai.training.learner.ranks LEARNER.json      command of a child
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from concurrent.futures import Future
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from osmosis_ai.errors import OsmosisError
from osmosis_ai.files import write_json
from osmosis_ai.processes.child_process import watch_parent
from osmosis_ai.processes.service import Service, ServiceError, ServiceSpec, free_port

if TYPE_CHECKING:
    from typing_extensions import Self

    from osmosis_ai.config.training import TrainingSettings
    from osmosis_ai.training.learner.policy import Policy

T = TypeVar("T")

# Grace for running work when a process is lost: it may wait in a driver forever.
GIVE_UP_S = 10.0
# From a broken connection to the end of the process that held its other end.
LOSS_S = 2.0
STOP_GRACE_S = 10.0


class LearnerSpec(Protocol):
    """The arguments of a learner, which a run's spec has."""

    @property
    def model_path(self) -> str: ...
    @property
    def settings(self) -> TrainingSettings: ...
    @property
    def device(self) -> str | None: ...
    @property
    def adapter(self) -> Path | None: ...


class LearnerProcessLostError(OsmosisError):
    """A process of the learner ended during the run; another session can resume."""


class LearnerRanks:
    """Starts the other processes and makes this one rank 0 within an ``async with`` block.

    It does nothing for a learner of one process, or if `torchrun` has started them.
    """

    def __init__(self, spec: LearnerSpec, directory: Path, environ: Mapping[str, str]) -> None:
        self._spec = spec
        self._directory = directory
        self._environ = environ
        self._ranks: list[Service] = []
        self._before: dict[str, str | None] = {}

    async def __aenter__(self) -> Self:
        size = self._spec.settings.learner_processes
        if size == 1 or "WORLD_SIZE" in os.environ:
            return self
        from osmosis_ai.training.learner.distributed import World

        if World.is_joined():
            raise OsmosisError(
                "this process is still connected to the processes of an earlier, failed learner.",
                hint="train in a new Python process; the run resumes from its last checkpoint",
            )
        meeting = {"WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
        try:
            for rank in range(1, size):
                self._ranks.append(Service(self._follower(rank, meeting)))
                await self._ranks[-1].start()
        except BaseException:
            await self.__aexit__()
            raise
        ours = {**meeting, "RANK": "0", "LOCAL_RANK": "0"}
        self._before = {name: os.environ.get(name) for name in ours}
        os.environ.update(ours)
        return self

    async def __aexit__(self, *_exc: object) -> None:
        if not self._ranks:
            return
        for name, value in self._before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
        await asyncio.gather(*(rank.stop() for rank in self._ranks))
        from osmosis_ai.training.learner.distributed import World

        World.drop()  # no effect if the learner was closed in order

    def _follower(self, rank: int, meeting: Mapping[str, str]) -> ServiceSpec:
        path, spec = self._directory / "learner.json", self._spec
        document = {
            "model_path": spec.model_path,
            "settings": spec.settings.model_dump(mode="json", exclude={"ignored"}),
            "device": spec.device,
            "adapter": str(spec.adapter.resolve()) if spec.adapter else None,
        }
        self._directory.mkdir(exist_ok=True)
        write_json(path, document, durable=False)
        return ServiceSpec(
            name=f"process {rank} of the learner",
            command=[sys.executable, "-m", "osmosis_ai.training.learner.ranks", str(path)],
            env={**self._environ, **meeting, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            cwd=Path.cwd(),
            log_path=self._directory / f"process-{rank}.log",
            stop_grace_s=STOP_GRACE_S,
        )

    async def run_blocking(self, work: Callable[[], T]) -> T:
        """Run ``work`` in a thread; raise OsmosisError if a follower ends first."""
        if not self._ranks:
            return await asyncio.to_thread(work)
        # A daemon thread: a waiter for a missing rank must not block process exit.
        done: Future[T] = Future()

        def fulfil() -> None:
            try:
                done.set_result(work())
            except BaseException as error:  # the thread's edge: the future reports it
                done.set_exception(error)

        threading.Thread(target=fulfil, name="learner-start", daemon=True).start()
        doing = asyncio.wrap_future(done)
        async with self._deaths() as deaths:
            waiting: set[asyncio.Future[Any]] = {doing, *deaths}
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            if not doing.done() and (loss := self._loss()):
                # The work is cancelled next, and its outcome does not matter.
                doing.add_done_callback(lambda late: late.cancelled() or late.exception())
                raise loss
            return await doing

    async def run(self, work: Coroutine[Any, Any, T], learner: Policy) -> T:
        """Await ``work``, which uses ``learner``; raise LearnerProcessLostError if a follower ends first."""
        if not self._ranks:
            return await work
        doing = asyncio.ensure_future(work)
        try:
            async with self._deaths() as deaths:
                await asyncio.wait({doing, *deaths}, return_when=asyncio.FIRST_COMPLETED)
                if doing.done() and isinstance(doing.exception(), RuntimeError):
                    # torch reports a silent peer this way. Its end becomes visible a moment later.
                    await asyncio.wait(deaths, timeout=LOSS_S, return_when=asyncio.FIRST_COMPLETED)
                elif doing.done():
                    return doing.result()
            if (loss := self._loss()) is None:
                return doing.result()
            learner.abandon()
            doing.cancel()
            await asyncio.wait({doing}, timeout=GIVE_UP_S)
            raise LearnerProcessLostError(
                loss.message, details=loss.details, hint="the next session resumes from the last checkpoint"
            )
        except asyncio.CancelledError:
            doing.cancel()
            await asyncio.gather(doing, return_exceptions=True)
            raise

    @asynccontextmanager
    async def _deaths(self) -> AsyncIterator[list[asyncio.Task[ServiceError]]]:
        deaths = [asyncio.create_task(rank.death()) for rank in self._ranks]
        try:
            yield deaths
        finally:
            for death in deaths:
                death.cancel()
            await asyncio.gather(*deaths, return_exceptions=True)

    def _loss(self) -> ServiceError | None:
        return next((failure for rank in self._ranks if (failure := rank.failure()) is not None), None)


def main(document: str) -> None:
    from osmosis_ai.config.training import TrainingSettings
    from osmosis_ai.training.learner.learner import Learner

    watch_parent()
    written = json.loads(Path(document).read_text(encoding="utf-8"))
    adapter = Path(written["adapter"]) if written["adapter"] else None
    settings = TrainingSettings(**written["settings"])
    Learner(written["model_path"], settings, written["device"], adapter=adapter).follow()


if __name__ == "__main__":
    main(sys.argv[1])
