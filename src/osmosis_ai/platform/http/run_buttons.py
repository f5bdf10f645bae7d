"""The buttons of the viewer's pages on a platform: what a visitor may change, and why not what they may not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from osmosis_ai.errors import OsmosisError
from osmosis_ai.platform.http.workspace_visits import WorkspaceVisit
from osmosis_ai.platform.runs.lifecycle import OPEN, UNFINISHED, RunKind
from osmosis_ai.training.runs.curves import SavedAdapter
from osmosis_ai.viewer.access import SECTIONS, RunButton
from osmosis_ai.viewer.source import RunEntry

RunAction = Literal["stop", "retry", "resume", "resubmit"]

ACTION_TEXTS: Mapping[RunAction, str] = {
    "stop": "Stop",
    "retry": "Retry failed",
    "resume": "Resume",
    "resubmit": "Submit again",
}
RUN_ACTIONS: Mapping[RunKind, Sequence[RunAction]] = {
    "eval": ("stop", "retry", "resubmit"),
    "training": ("stop", "resume", "resubmit"),
}
"""What can be done with a run of a kind."""


@dataclass(frozen=True)
class PageActions:
    """What a visitor can change, as the buttons of the viewer's pages."""

    visit: WorkspaceVisit

    @cached_property
    def _deployers(self) -> Mapping[str, str | None]:
        """Who has deployed what is served now, which are few."""
        return self.visit.services.lora_models.deployers(self.visit.workspace.id)

    def buttons(self, run: RunEntry) -> Sequence[RunButton]:
        """Return the buttons of a run."""
        if run.kind == "rubric":
            return ()
        return [
            RunButton(
                ACTION_TEXTS[name],
                self.visit.href(SECTIONS[run.kind], run.name, name),
                _refused(name, run) or self._why_not_continued(name, run),
            )
            for name in RUN_ACTIONS[run.kind]
        ]

    def _why_not_continued(self, action: RunAction, run: RunEntry) -> str | None:
        """Return why an ended run cannot be resumed or retried, in the API's words."""
        services = self.visit.services
        try:
            if action == "resume":
                services.resumption.plan(services.training_runs.get(self.visit.workspace.id, run.id).run)
            elif action == "retry":
                services.eval_retries.require_possible(run.id)
        except OsmosisError as error:
            return error.message
        return None

    def adapter_buttons(self, adapter: SavedAdapter) -> Sequence[RunButton]:
        """Return the buttons of an adapter that a run has saved."""
        name = "undeploy" if adapter.deployment == "active" else "deploy"
        refused = None
        if name == "undeploy":
            others = self._deployers.get(adapter.name) != self.visit.visitor.user.id
            if others and self.visit.role == "member":
                refused = "somebody else has deployed it: that needs the role 'admin'"
        return [
            RunButton(name.capitalize(), self.visit.href("models", adapter.name, name), refused, posts=True)
        ]


def _refused(action: RunAction, run: RunEntry) -> str | None:
    """Return why an action makes no sense for a run; None where it may."""
    ended = run.status not in OPEN
    if action == "stop":
        return f"it has ended: {run.status}" if ended else "it is stopping" if run.stopping else None
    if action == "resubmit":
        return None
    if action == "resume":
        return None if run.status in UNFINISHED else f"it is {run.status}"
    if not ended:
        return f"it is {run.status}"
    line = run.headline
    all_scored = line is not None and line.scored + line.skipped >= line.planned > 0
    return "every sample has a score" if all_scored else None
