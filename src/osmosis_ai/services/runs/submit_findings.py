"""What is known of a submit before it is one: what was checked, what only the platform can tell, what will run.

A platform that can be asked beforehand tells which commit it would run, so what is not pushed is what lies between
that commit and the one checked out here, wherever the platform reads the repository from. Of any other, only what
this clone knows of its upstream can be said.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from osmosis_ai.config.sections import served_agent
from osmosis_ai.workspace.git import run_git

if TYPE_CHECKING:
    from osmosis_ai.api.git_identity import GitIdentity
    from osmosis_ai.api.wire.runs import SubmitCheck
    from osmosis_ai.config.sections import Experiment
    from osmosis_ai.workspace.git import GitState

CHECKS = {
    "config": "the config",
    "import": "the import of the entrypoint",
    "secrets": "the secrets",
    "dataset": "the dataset",
    "model": "the model",
    "commit": "the commit",
    "rollout": "the rollout's directory at that commit",
    "limits": "its own limits on the settings",
}
"""Everything that a submit may be refused for, in the words of people."""

_ONLY_THE_PLATFORM = ("dataset", "model", "commit", "rollout", "limits")


@dataclass(frozen=True)
class Findings:
    """How much of a submit is certain; both are keys of :data:`CHECKS`, in its order."""

    checked: tuple[str, ...]
    unchecked: tuple[str, ...]

    @classmethod
    def of(cls, verdict: SubmitCheck | None, *, doubtful: Sequence[str]) -> Findings:
        """Return what was checked.

        Args:
            verdict: the platform's, where it can be asked.
            doubtful: what could not be found out here, and no verdict covers.
        """
        unchecked = {*doubtful, *(() if verdict is not None else _ONLY_THE_PLATFORM)}
        return cls(
            tuple(check for check in CHECKS if check not in unchecked),
            tuple(check for check in CHECKS if check in unchecked),
        )

    def with_checked(self, check: str) -> Findings:
        """Return the findings after ``check`` has been made."""
        unchecked = [each for each in self.unchecked if each != check]
        return Findings(tuple(each for each in CHECKS if each not in unchecked), tuple(unchecked))


def in_words(checks: Sequence[str]) -> str:
    """Return checks as people read them."""
    return ", ".join(CHECKS[check] for check in checks)


def code_notes(
    experiment: Experiment, repository: GitIdentity, git: GitState, verdict: SubmitCheck | None
) -> list[str]:
    """Return which code will run, and which is checked out here."""
    if served_agent(experiment.entrypoint) is not None:
        return [f"The agent is served elsewhere ({experiment.entrypoint}): the repository's code is not run."]
    source = (
        f"commit {experiment.commit_sha}"
        if experiment.commit_sha
        else f"the latest commit of branch {experiment.branch}"
        if experiment.branch
        else "the latest commit it has synced of its default branch"
    )
    if verdict is not None and verdict.commit_sha:
        source += f", now {verdict.commit_sha[:8]}"
    here = f"{git.branch or 'no branch'} @ {git.head[:8]}" if git.head else "no commit yet"
    return [
        f"The platform runs the code of the repository it knows as {repository.identity}: {source}.",
        f"Checked out here: {here}.",
    ]


def code_warnings(
    root: Path,
    experiment: Experiment,
    repository: GitIdentity,
    git: GitState,
    verdict: SubmitCheck | None,
) -> list[str]:
    """Return in what the code that will run may not be the code that is here."""
    if served_agent(experiment.entrypoint) is not None:
        return []  # the agent's code is where it is served
    warnings = []
    if git.dirty:
        warnings.append("Uncommitted changes are not visible to the platform.")
    if experiment.commit_sha is not None:
        return warnings
    if verdict is not None and verdict.commit_sha:
        return [*warnings, *_distance(root, git, verdict)]
    if not _is_itself(root, repository):
        warnings += _push_warnings(git)
    if experiment.branch is None:
        warnings.append(
            "neither `commit_sha` nor `branch` is set: what runs may not be what is checked out here."
        )
    return warnings


def _distance(root: Path, git: GitState, verdict: SubmitCheck) -> list[str]:
    """Return how the commit that would run differs from the one checked out here."""
    would, sha = f"the platform would run {verdict.commit_sha[:8]}", verdict.commit_sha
    if git.head is None:
        return [f"{would}; nothing is committed here yet."]
    if git.head == sha:
        return []
    missing = _count(root, f"{sha}..{git.head}")
    if missing is None:
        return [f"{would}, which is not in this clone; {git.head[:8]} is checked out here."]
    if missing == 0:
        return [f"{would}, which is newer than {git.head[:8]}, checked out here."]
    commits = (
        "1 commit that is checked out here is" if missing == 1 else f"{missing} commits checked out here are"
    )
    it = "it" if missing == 1 else "them"
    reason = "not on the branch it reads" if verdict.repository.local else "not pushed to the branch it reads"
    return [f"{would}: {commits} {reason}; the platform does not see {it}."]


def _push_warnings(git: GitState) -> list[str]:
    warnings = []
    if git.branch is not None and not git.has_upstream:
        warnings.append(f"branch {git.branch} has no upstream; it may not be pushed.")
    if git.ahead:
        commits = "1 commit is" if git.ahead == 1 else f"{git.ahead} commits are"
        warnings.append(
            f"{commits} not pushed; the platform does not see {'it' if git.ahead == 1 else 'them'}."
        )
    return warnings


def _is_itself(root: Path, repository: GitIdentity) -> bool:
    """Tell whether the origin is this very repository, which needs no push."""
    return Path(repository.display_url).is_absolute() and Path(repository.display_url) == root.resolve()


def _count(root: Path, commits: str) -> int | None:
    counted = run_git(["rev-list", "--count", commits], cwd=root)
    return int(counted.stdout) if counted.returncode == 0 and counted.stdout.strip().isdigit() else None
