"""Whether an agent can say which tools it has, before a run is started that would fail at every row.

Tools may depend on the row, so an agent that fails at some rows is let through: those runs fail, and say why.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any

from osmosis_ai.evaluation.agent_loop.dataset import dataset_row_to_request
from osmosis_ai.evaluation.agent_loop.errors import DatasetValidationError, ToolValidationError

if TYPE_CHECKING:
    from osmosis_ai.rollout.loop.agent import RolloutAgentLoop
    from osmosis_ai.rollout.loop.schemas import RolloutRequest

MOST_ROWS = 100
"""How many rows an agent is asked about before it counts as one that has no usable tools for any."""


def require_tools(
    agent: RolloutAgentLoop, rows: Iterable[Mapping[str, Any]], *, first_index: int = 0, **request: Any
) -> None:
    """Ask an agent for its tools, for one row after another, until there is one that it has usable tools for."""
    first: ToolValidationError | None = None
    for index, row in enumerate(islice(rows, MOST_ROWS), first_index):
        try:
            asked = dataset_row_to_request(row, index, **request)
        except DatasetValidationError:
            continue  # a row of which no request can be made fails by itself
        found = _trouble(agent, asked)
        if found is None:
            return
        first = first or found
    if first is not None:
        raise first


def _trouble(agent: RolloutAgentLoop, request: RolloutRequest) -> ToolValidationError | None:
    from osmosis_ai.rollout.loop.loading import describe_failure
    from osmosis_ai.rollout.loop.tool_schemas import InvalidToolError, check_tools

    try:
        check_tools(agent.get_tools(request), agent.name)
    except InvalidToolError as error:
        return ToolValidationError(
            error.message, hint="`osmosis validate -m MODULE:AGENT` shows all that is wrong"
        )
    except (Exception, SystemExit) as error:  # the user's code
        return ToolValidationError(f"get_tools of '{agent.name}' failed: {describe_failure(error)}")
    return None
