"""Look at a workspace directory and mend what is missing, without an account and without a network.

Who is logged in is also told which workspace the repository belongs to; that this cannot be found out is no fault. Nor
is that this machine can not hold rollouts back: it is said, with what mends it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from osmosis_ai.api.git_identity import identify_origin
from osmosis_ai.errors import OsmosisError
from osmosis_ai.workspace import doctor
from osmosis_ai.workspace.git import read_origin, without_credentials
from osmosis_ai.workspace.layout import REQUIRED_DIRECTORIES

if TYPE_CHECKING:
    from osmosis_ai.api.wire.auth import WorkspaceMembership
    from osmosis_ai.sandbox import SandboxCapability

LOOKUP_TIMEOUT_S = 5.0


@dataclass(frozen=True)
class Origin:
    """A repository's `origin`, fit to be shown.

    Args:
        remote_url: its address.
        identity: what platforms call the repository.
        warning: why there is no identity.
    """

    remote_url: str | None = None
    identity: str | None = None
    warning: str | None = None


@dataclass(frozen=True)
class Checkup:
    """What the doctor found.

    Args:
        report: the directories and guides.
        origin: where the repository is from.
        sandbox: what this machine can do to hold rollouts back.
        limits: what would hold the rollouts of a platform to what they may take here, in words.
        workspace: the one it belongs to on the platform one is logged in to.
    """

    report: doctor.DoctorReport
    origin: Origin
    sandbox: SandboxCapability
    limits: str
    workspace: WorkspaceMembership | None = None

    def resource(self) -> dict[str, Any]:
        """Return the checkup as scripts see it."""
        git: dict[str, Any] = {"identity": self.origin.identity, "remote_url": self.origin.remote_url}
        if self.origin.warning is not None:
            git["warning"] = self.origin.warning
        linked = self.workspace
        return {
            "workspace_directory": str(self.report.root),
            "git": git,
            "workspace": linked and {"id": linked.id, "name": linked.name, "role": linked.role},
            "required_paths": [*REQUIRED_DIRECTORIES, *doctor.AGENT_GUIDES],
            "missing": list(self.report.missing),
            "valid": self.report.valid,
            "fixed": list(self.report.fixed),
            "gitignore": {"missing": list(self.report.unignored), "added": list(self.report.ignored)},
            "tracked_env_files": list(self.report.tracked_env_files),
            "sandbox": {
                "works": self.sandbox.works,
                "problem": self.sandbox.problem,
                "remedy": self.sandbox.remedy,
                "limits": self.limits,
            },
        }


def examine(path: Path | None = None, *, fix: bool = False) -> Checkup:
    """Check the workspace directory that ``path`` (the current directory when None) is in.

    Args:
        path: a directory of the work tree.
        fix: create what is missing.

    Raises:
        WorkspaceRequiredError: outside a Git work tree.
        ConflictError: when something stands in the way of the fix.
        OsmosisError: when directories are missing and ``fix`` is not set; its details are the resource.
    """
    from osmosis_ai import sandbox

    report = doctor.fix(path) if fix else doctor.check(path)
    origin = _origin_of(report.root)
    linked = _linked_workspace(origin.identity) if origin.identity else None
    checkup = Checkup(report, origin, sandbox.check_sandbox(), sandbox.look_at_control().words, linked)
    if not report.valid:
        raise OsmosisError(
            f"{report.root} is not a complete workspace directory. Missing:\n"
            + "\n".join(f"  - {name}/" for name in report.missing_directories)
            + "\nRun `osmosis doctor --fix` to create what is missing.",
            details=checkup.resource(),
        )
    return checkup


def _origin_of(root: Path) -> Origin:
    url = read_origin(root)
    if url is None:
        return Origin(warning="there is no remote `origin`; only runs on a platform need one")
    try:
        git = identify_origin(url, base=root)
    except OsmosisError as error:
        return Origin(without_credentials(url), warning=error.message)
    return Origin(git.display_url, git.identity)


def _linked_workspace(identity: str) -> WorkspaceMembership | None:
    """Return the workspace of a repository; None when nobody is logged in or the platform does not say."""
    from osmosis_ai.api.credentials import require_credentials

    try:
        credentials = require_credentials()
        from osmosis_ai.services.context import connect

        with connect(credentials, git_identity=identity, timeout_s=LOOKUP_TIMEOUT_S) as client:
            return client.verify().workspace
    except OsmosisError:
        return None
