"""`osmosis dev server list`: the servers of the workspace."""

from __future__ import annotations

from osmosis_ai.cli.connection import list_result, platform_context
from osmosis_ai.cli.options import AllOption, LimitOption
from osmosis_ai.cli.output.context import current
from osmosis_ai.cli.output.results import Column, ListResult, Status, Timestamp


def list_(limit: LimitOption = 50, everything: AllOption = False) -> ListResult:
    """List the development servers of the workspace.

    Examples:
        osmosis dev server list
    """
    from osmosis_ai.api.capabilities import Capability
    from osmosis_ai.services.capabilities import why_empty
    from osmosis_ai.services.dev_servers import list_dev_servers

    with platform_context() as context, current().status("Fetching development servers"):
        listing = list_dev_servers(context.client, limit=limit, everything=everything)
        return list_result(
            listing,
            lambda server: server.model_dump(mode="json"),
            columns=(
                Column("ID", "id", keep=True),
                Column("Rollout", "name"),
                Column("URL", "url"),
                Column("Expires At", value=lambda item: Timestamp(item["expires_at"])),
                Column("Status", value=lambda item: Status(item["status"] or "unknown")),
            ),
            extra=context.resource(),
            hints=why_empty(context.client, Capability.DEV_SERVERS),
        )
