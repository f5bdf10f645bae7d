"""Compare a machine's resources with a run's request, and describe what is missing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import orjson

from osmosis_ai.api.wire.workers import WorkerOffer
from osmosis_ai.config.execution import ExecutionSection
from osmosis_ai.platform.db.tables import DbKnownWorker


@dataclass(frozen=True, slots=True)
class Machine:
    """What a worker has for each run; of what it does not say, None, it is believed to have enough."""

    labels: frozenset[str] = frozenset()
    cpus: float | None = None
    gpus: float | None = None
    memory_gb: float | None = None
    sandbox: bool | None = None

    @classmethod
    def of(cls, offer: WorkerOffer) -> Machine:
        """Return the machine that asks for a run."""
        return cls(frozenset(offer.labels), offer.cpus, offer.gpus, offer.memory_gb, offer.sandbox)

    @classmethod
    def known(cls, worker: DbKnownWorker) -> Machine:
        """Return a machine that has asked for runs."""
        return cls(frozenset(worker.labels), worker.cpus, worker.gpus, worker.memory_gb, worker.sandbox)

    def lacks(self, asks: ExecutionSection) -> Iterator[str]:
        """Yield what a run asks for that is not here; nothing: it fits."""
        for label in asks.labels or ():
            if label not in self.labels:
                yield f"the label `{label}`"
        for wanted, had, what in (
            (asks.cpus, self.cpus, "cpus"),
            (asks.gpus, self.gpus, "gpus"),
            (asks.memory_gb, self.memory_gb, "GiB of memory"),
        ):
            if wanted is not None and had is not None and wanted > had:
                yield f"{wanted:g} {what} (has {had:g})"
        if asks.needs_sandbox and self.sandbox is False:
            yield "a sandbox"


def needs_key(asks: ExecutionSection) -> str | None:
    """Return one text for all runs that the same machines fit; None for those that any does."""
    asked = {
        "labels": sorted(set(asks.labels or ())),
        "cpus": asks.cpus,
        "gpus": asks.gpus,
        "memory_gb": asks.memory_gb,
        "sandbox": asks.needs_sandbox,
    }
    known = {name: value for name, value in asked.items() if value}
    return orjson.dumps(known, option=orjson.OPT_SORT_KEYS).decode() if known else None
