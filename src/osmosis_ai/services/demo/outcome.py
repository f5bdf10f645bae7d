"""What a demo found out."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from osmosis_ai.services.demo.commands import CommandFailed
from osmosis_ai.services.demo.conversation import Sample, most_telling_sample
from osmosis_ai.services.demo.scratch import Scratch


@dataclass(frozen=True, slots=True)
class DemoOutcome:
    """What the evaluation left behind.

    Attributes:
        scratch: where everything is.
        status: the exit status of the evaluation's command.
        results: the directory with its metrics and conversations.
        counts: how many samples were planned, scored, unscored …, as the evaluation counts them.
        metrics: its numbers.
        sample: one of the samples.
        run: the resource of the command's own result, known when it was asked for as JSON.
        platform_url: where the demo's platform still runs, when it was to be kept.
    """

    scratch: Scratch
    status: int
    results: Path
    counts: Mapping[str, Any]
    metrics: Mapping[str, Any]
    sample: Sample | None
    run: Mapping[str, Any] | None
    platform_url: str | None = None

    @property
    def scored(self) -> int:
        """How many samples have a reward."""
        return int(self.counts["scored"])

    @property
    def total(self) -> int:
        """How many samples there were to be."""
        return int(self.counts["planned"])

    @property
    def complete(self) -> bool:
        """Whether every sample is scored."""
        return self.status == 0 and 0 < self.scored == self.total


def read_outcome(
    scratch: Scratch,
    status: int,
    results: Path,
    run: Mapping[str, Any] | None,
    *,
    platform_url: str | None = None,
) -> DemoOutcome:
    """Read what an evaluation left in ``results``.

    Raises:
        CommandFailed: it ended before it had any.
    """
    try:
        metrics = json.loads((results / "metrics.json").read_bytes())
    except FileNotFoundError as error:
        raise CommandFailed(
            f"the evaluation ended with status {status} before it had results; its files are in {scratch.root}",
            details={"status": status, "directory": str(scratch.root)},
        ) from error
    return DemoOutcome(
        scratch=scratch,
        status=status,
        results=results,
        counts=metrics["estimates"]["counts"],
        metrics=metrics,
        sample=most_telling_sample(results),
        run=run,
        platform_url=platform_url,
    )
