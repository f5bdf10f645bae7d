"""`osmosis template list`: the agents to begin with."""

from __future__ import annotations

from osmosis_ai.cli.output.results import Column, ListResult


def list_() -> ListResult:
    """List the templates: agents that come with Osmosis, or those of OSMOSIS_WORKSPACE_TEMPLATE_PATH.

    Examples:
        osmosis template list
    """
    from osmosis_ai.services.rollouts import list_templates

    items = [{"name": template.name, "summary": template.summary} for template in list_templates()]
    return ListResult(
        items,
        # Scripts take every plain line for a name.
        (Column("Name", "name", keep=True), Column("What it is", "summary", in_plain=False)),
        hints=["Write one into this repository: osmosis template apply NAME"],
    )
