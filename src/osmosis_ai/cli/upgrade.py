"""`osmosis upgrade`: what is newer where this installation came from."""

from __future__ import annotations

from osmosis_ai.cli.output.context import current
from osmosis_ai.cli.output.results import OperationResult


def upgrade() -> OperationResult:
    """Bring Osmosis up to date from where it was installed: a checkout, a wheel, a Git repository.

    Examples:
        osmosis upgrade
    """
    # What shows the result is replaced meanwhile.
    from osmosis_ai.cli.output import envelopes, plain, terminal  # noqa: F401
    from osmosis_ai.services.upgrade import upgrade as bring_up_to_date

    with current().status("Looking for a newer version"):
        report = bring_up_to_date()
    resource = report.resource()
    if not report.commands:
        return OperationResult(
            operation="upgrade",
            status="no_update",
            message=f"Osmosis {resource['installed_version']} is up to date with {resource['source']['location']}.",
            resource=resource,
        )
    newest = f" to {report.latest_version}" if report.latest_version else ""
    return OperationResult(
        operation="upgrade",
        message=f"Upgraded Osmosis from {resource['installed_version']}{newest}.",
        resource=resource,
    )
