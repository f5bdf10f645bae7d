"""The first steps: log in, choose a workspace, clone its repository, and create a prompt for a coding agent.

Completed steps are skipped, so repeating the command resumes it. The caller's ``guide`` asks the user; if the
user declines, the quickstart ends.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar
from urllib.parse import quote, urlsplit

from osmosis_ai.api.capabilities import Capability
from osmosis_ai.api.client import PlatformClient
from osmosis_ai.api.connections import REPEATING
from osmosis_ai.api.credentials import require_credentials
from osmosis_ai.api.http_errors import PlatformError
from osmosis_ai.api.models.auth import (
    INTENTS,
    Intent,
    QuickstartChoice,
    QuickstartRecorded,
    QuickstartRepository,
    QuickstartStatus,
)
from osmosis_ai.api.platform_url import DEFAULT_PLATFORM_URL, TOKEN_ENV, is_loopback
from osmosis_ai.errors import NotFoundError, OsmosisError
from osmosis_ai.services.capabilities import is_offered
from osmosis_ai.services.context import connect, find_checkout
from osmosis_ai.services.runs.download import safe_name
from osmosis_ai.services.runs.lifecycle import is_temporary
from osmosis_ai.services.workspaces import (
    Membership,
    WorkspaceDirectories,
    checked_clone_url,
    clone_into,
    github_urls,
    list_workspaces,
    named_membership,
)

POLL_S, PATIENCE_S = 5.0, 900.0
"""Interval and time limit of waiting for a workspace's repository."""

_FAILED_LOOKS = 12
_PATH = "/api/cli/quickstart"

_INTENTS: dict[Intent, str] = {
    "train": "Train an agent",
    "eval": "Evaluate an agent",
    "benchmark": "Run an agent on a benchmark",
    "explore": "Look around",
}
_STEPS: dict[Intent, str] = {
    "train": "Create a rollout, evaluate it (`osmosis eval run`), then train it (`osmosis train submit`).",
    "eval": "Create a rollout with a grader and a dataset, and evaluate it (`osmosis eval run`, then `osmosis eval submit`).",
    "benchmark": "Choose a benchmark (`osmosis benchmark list`), write its config, and submit it "
    "(`osmosis benchmark submit`).",
    "explore": "Describe what is here and what I could do with it. Change nothing.",
}
T = TypeVar("T")


class Guide(Protocol):
    """Interacts with the user; questions raise KeyboardInterrupt when the user cancels."""

    def log_in(self) -> None:
        """Log the user in, and save the login."""

    def choose(self, question: str, options: Sequence[str]) -> int:
        """Return the index of the chosen option."""

    def ask(self, question: str) -> str:
        """Return the user's answer; may be empty."""

    def tell(self, sentence: str) -> None:
        """Show information that may require action."""

    def warn(self, message: str, code: str | None = None) -> None:
        """Show a warning."""


class Quickstart:
    """The first steps; ``start`` is the current directory and the parent of a clone."""

    def __init__(self, guide: Guide, start: Path) -> None:
        self._guide = guide
        self._start = start
        self._offers: frozenset[Capability] | None = None

    def run(self, workspace: str | None) -> dict[str, Any]:
        """Perform the steps that are not done yet, and return their results as the JSON output shows them.

        ``workspace`` is a name or id; None means that of the directory, the only one, or the user's choice.
        """
        chosen = self._choose_workspace(workspace)
        status = self._await_repository(chosen)
        directory = self._checkout(chosen, status.repo)
        url, name = require_credentials().platform_url, chosen.workspace.name
        WorkspaceDirectories(url).remember(chosen.workspace.id, directory)
        if not status.billing_ready:
            self._guide.tell(f"Runs need a payment method: {url}/{quote(name, safe='')}/billing")
        intent = self._choose_intent()
        task = self._guide.ask("What should the agent do? (Enter to decide later)")
        prompt = agent_prompt(intent, task, workspace=name, platform_url=url, directory=directory)
        return {
            "workspace": chosen.workspace.model_dump(include={"id", "name", "role"}),
            "repo": status.repo.model_dump(include={"connected", "full_name"}),
            "workspace_directory": str(directory),
            "billing_ready": status.billing_ready,
            "previously_completed": status.completed,
            "intent": intent,
            "task": task,
            "agent_prompt": prompt,
            "completion_recorded": self._record(chosen, intent),
        }

    def _choose_workspace(self, name: str | None) -> Membership:
        found = self._logged_in(lambda: list_workspaces(self._start, warn=self._guide.warn))
        if not found:
            url = require_credentials().platform_url
            hint = "on the platform's machine: osmosis platform member add WORKSPACE EMAIL"
            if url == DEFAULT_PLATFORM_URL:
                hint = f"create one at {url}, or ask an owner to add you"
            raise NotFoundError(f"You are not a member of any workspace on {url}.", hint=hint)
        if name is not None:
            return named_membership(name, found)
        here = [member for member in found if member.current] or (found if len(found) == 1 else [])
        if here:
            return here[0]
        return found[self._guide.choose("Which workspace?", [member.workspace.name for member in found])]

    def _await_repository(self, chosen: Membership) -> QuickstartStatus:
        """Wait for the workspace's repository and return the setup state."""
        deadline, told, failed = time.monotonic() + PATIENCE_S, False, 0
        query = {"organizationId": chosen.workspace.id}
        while True:
            try:
                status = self._ask_platform(
                    lambda client: client.get(_PATH, model=QuickstartStatus, params=query, git="never")
                )
                failed = 0
            except PlatformError as error:
                failed += 1
                if not is_temporary(error) or not told or failed > _FAILED_LOOKS:
                    raise
            if status.repo.connected and status.repo.full_name:
                return status
            if not told:
                self._guide.tell(_connect_sentence(require_credentials().platform_url, chosen.workspace.name))
                told = True
            if time.monotonic() >= deadline:
                raise OsmosisError(
                    f"Workspace '{chosen.workspace.name}' has no repository.",
                    hint="connect a repository, then run `osmosis quickstart` again",
                )
            time.sleep(POLL_S)

    def _checkout(self, chosen: Membership, repo: QuickstartRepository) -> Path:
        if chosen.current:
            return find_checkout(self._start, require_scaffold=False).workspace.root
        if chosen.directory is not None:
            return chosen.directory
        full_name = repo.full_name or ""
        if repo.clone_url:
            host = urlsplit(require_credentials().platform_url).hostname
            url = checked_clone_url(repo.clone_url, nearby=is_loopback(host))
        else:
            urls = list(github_urls(full_name).items())
            url = urls[self._guide.choose("Clone over", [transport for transport, _ in urls])][1]
        target = self._start / safe_name(full_name.rpartition("/")[2])
        self._guide.tell(f"Cloning {full_name} into {target}")
        return clone_into(url, target)

    def _choose_intent(self) -> Intent:
        offered = is_offered(self._offers, Capability.BENCHMARKS)
        intents = [intent for intent in INTENTS if offered or intent != "benchmark"]
        return intents[
            self._guide.choose("What do you want to do first?", [_INTENTS[each] for each in intents])
        ]

    def _record(self, chosen: Membership, intent: Intent) -> bool:
        choice = QuickstartChoice(organizationId=chosen.workspace.id, intent=intent)
        try:
            self._ask_platform(
                lambda client: client.post(
                    _PATH, choice, model=QuickstartRecorded, git="never", retry=REPEATING
                )
            )
        except PlatformError as error:
            self._guide.warn(f"the platform did not record the quickstart: {error.message}")
            return False
        return True

    def _ask_platform(self, call: Callable[[PlatformClient], T]) -> T:
        def ask() -> T:
            with connect(require_credentials(), warn=self._guide.warn) as client:
                found = call(client)
                self._offers = client.offers
                return found

        return self._logged_in(ask)

    def _logged_in(self, call: Callable[[], T]) -> T:
        """Return the result of ``call``, after a login if the platform requires one."""
        try:
            return call()
        except OsmosisError as error:
            # A token in the environment overrides any new login.
            if error.code not in ("AUTH_REQUIRED", "TOKEN_NOT_FOUND") or os.environ.get(TOKEN_ENV):
                raise
        self._guide.log_in()
        return call()


def agent_prompt(intent: Intent, task: str, *, workspace: str, platform_url: str, directory: Path) -> str:
    """Return instructions for a coding agent that continues from here."""
    wanted = task or "Ask me what the agent should do before you begin."
    return "\n".join(
        [
            f"You are in {directory}, an Osmosis workspace directory of the workspace {workspace} on {platform_url}.",
            "Read AGENTS.md and configs/AGENTS.md first, if they exist; `osmosis doctor --fix` writes them.",
            f"What I want: {wanted}",
            _STEPS[intent],
            "`osmosis COMMAND --help` explains a command, and `--json` prints machine-readable output. "
            "Ask me before anything costs money.",
        ]
    )


def _connect_sentence(platform_url: str, workspace: str) -> str:
    if platform_url == DEFAULT_PLATFORM_URL:
        page = f"{platform_url}/{quote(workspace, safe='')}/integrations/git"
        return f"Connect a repository to the workspace {workspace}: {page}. Waiting …"
    return (
        f"Connect a repository to the workspace {workspace}, on the platform's machine: osmosis platform connect URL. "
        "Waiting …"
    )
