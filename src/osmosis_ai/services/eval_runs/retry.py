"""`osmosis eval retry`: a run's failed and unscored samples made again, and what both have come to together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from osmosis_ai.api.client import PlatformClient
    from osmosis_ai.api.wire.eval_runs import MergedEvaluation, RetryCheck
    from osmosis_ai.api.wire.runs import SubmittedRun
    from osmosis_ai.evaluation.headline import Headline
    from osmosis_ai.evaluation.metrics_models import Estimates


@dataclass(frozen=True)
class ProposedRetry:
    """A retry that the platform would take.

    Attributes:
        check: what it would make, as the platform says.
        provided: values of secrets, for the retry only.
    """

    check: RetryCheck
    provided: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def name(self) -> str:
        """The run whose samples are made again."""
        return self.check.eval_run.name or self.check.eval_run.id or ""

    @property
    def samples(self) -> str:
        """How many of how many, in words."""
        return f"{self.check.samples:,} of {self.check.planned:,}"

    @property
    def reasons(self) -> str:
        """Why they have no score, in words."""
        from osmosis_ai.evaluation.headline import breakdown

        check = self.check
        parts = [
            f"failed {breakdown(check.failed)}" if check.failed else "",
            f"{check.no_reward:,} without a reward" if check.no_reward else "",
            f"{check.missing:,} never made" if check.missing else "",
        ]
        return "; ".join(filter(None, parts))


@dataclass(frozen=True)
class MergedRuns:
    """A run and its retries as one evaluation; ``estimates`` is None in a form this version does not know."""

    wire: MergedEvaluation
    estimates: Estimates | None

    @classmethod
    def of(cls, wire: MergedEvaluation) -> MergedRuns:
        """Return what a platform's reply says."""
        from osmosis_ai.evaluation.metrics_models import Estimates

        return cls(wire, Estimates.read(wire.estimates))

    @property
    def headline(self) -> Headline | None:
        """The result of all in a line."""
        from osmosis_ai.datasets.selection import RowsDrawn
        from osmosis_ai.evaluation.headline import Headline

        if self.estimates is None:
            return None
        return Headline.of(self.estimates, RowsDrawn.read(self.wire.rows_drawn))

    @property
    def unfinished(self) -> str | None:
        """Why these are not all samples yet, in a sentence; None when they are."""
        from osmosis_ai.services.runs.lifecycle import TERMINAL

        for run in self.wire.runs:
            if run.status not in TERMINAL["eval"]:
                return f"the run {run.name} is {run.status}: its samples are not all there yet."
        pending = self.estimates.counts.pending if self.estimates is not None else 0
        return f"{pending} samples were never made, in none of the runs." if pending else None

    def data(self) -> dict[str, Any]:
        """Return it as scripts see it."""
        headline = self.headline
        return {
            "runs": [run.model_dump(mode="json") for run in self.wire.runs],
            "headline": headline.to_json() if headline is not None else None,
            "estimates": self.wire.estimates,
        }


def plan_retry(client: PlatformClient, name: str, secret_values: Mapping[str, str]) -> ProposedRetry:
    """Ask what a retry of a run would make.

    Args:
        client: the platform.
        name: the run's name or id.
        secret_values: from the user's secrets file, for the retry alone.

    Raises:
        PlatformError: no such run, or the platform retries nothing; or as every call.
        OsmosisError: there is nothing to retry, or it cannot be; the message says why.
    """
    from osmosis_ai.api.capabilities import Capability
    from osmosis_ai.services.capabilities import require_offered
    from osmosis_ai.services.runs.secrets import explaining_failures, stand_ins, supplied_values

    detail = client.eval_runs.get(name)
    require_offered(client, Capability.EVAL_RETRIES)
    provided = supplied_values(tuple(detail.resolved_secret_scopes or ()), secret_values)
    client.hide(provided.values())
    with explaining_failures():
        check = client.eval_runs.check_retry(detail.eval_run.id, stand_ins(provided))
    return ProposedRetry(check, provided)


def submit_retry(client: PlatformClient, planned: ProposedRetry) -> SubmittedRun:
    """Submit a retry, once.

    Raises:
        PlatformError: the platform refused; or it did not answer, and the retry may exist all the same.
    """
    from osmosis_ai.services.runs.secrets import explaining_failures

    with explaining_failures("osmosis eval list"):
        return client.eval_runs.retry(planned.check.eval_run.id or planned.name, planned.provided)
