"""Look at a workspace directory and mend what is missing, without an account and without a network."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from osmosis_ai.errors import OsmosisError
from osmosis_ai.workspace import doctor
from osmosis_ai.workspace.git import read_origin, without_credentials
from osmosis_ai.workspace.layout import REQUIRED_DIRECTORIES


@dataclass(frozen=True)
class Checkup:
    """What the doctor found.

    Args:
        report: the directories and guides.
        remote_url: the repository's `origin`, fit to be shown.
    """

    report: doctor.DoctorReport
    remote_url: str | None

    def resource(self) -> dict[str, Any]:
        """Return the checkup as scripts see it."""
        git: dict[str, Any] = {"identity": None, "remote_url": self.remote_url}
        if self.remote_url is None:
            git["warning"] = "there is no remote `origin`; only runs on a platform need one"
        return {
            "workspace_directory": str(self.report.root),
            "git": git,
            "workspace": None,
            "required_paths": [*REQUIRED_DIRECTORIES, *doctor.AGENT_GUIDES],
            "missing": list(self.report.missing),
            "valid": self.report.valid,
            "fixed": list(self.report.fixed),
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
    report = doctor.fix(path) if fix else doctor.check(path)
    origin = read_origin(report.root)
    checkup = Checkup(report, without_credentials(origin) if origin else None)
    if not report.valid:
        raise OsmosisError(
            f"{report.root} is not a complete workspace directory. Missing:\n"
            + "\n".join(f"  - {name}/" for name in report.missing_directories)
            + "\nRun `osmosis doctor --fix` to create what is missing.",
            details=checkup.resource(),
        )
    return checkup
