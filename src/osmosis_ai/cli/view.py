"""`osmosis view`: the runs of this machine in a browser, without platform, login or network."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from osmosis_ai.cli.browser import is_remote, open_browser, tunnel_command
from osmosis_ai.cli.name_completion import complete_local_run
from osmosis_ai.cli.output.context import current
from osmosis_ai.cli.output.formats import shown_path
from osmosis_ai.cli.output.results import Column, OperationResult, StreamResult

if TYPE_CHECKING:
    from osmosis_ai.services.viewing import ViewerAddress
    from osmosis_ai.viewer.report import RunReportOptions


def view(
    run: Annotated[
        str | None,
        typer.Argument(
            metavar="[RUN|DIR]",
            help="A run of this machine, or a directory that holds runs somewhere below (default: the workspace).",
            show_default=False,
            autocompletion=complete_local_run,
        ),
    ] = None,
    port: Annotated[
        int, typer.Option("--port", "-p", min=0, max=65535, help="Port to listen on, 0 for a free one.")
    ] = 0,
    host: Annotated[str, typer.Option(help="Address to listen on; one of this machine alone.")] = "127.0.0.1",
    no_open: Annotated[bool, typer.Option("--no-open", help="Do not open a browser.")] = False,
    report: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.html", help="Write the run into one file that opens from a disk, and serve nothing."
        ),
    ] = None,
    max_mb: Annotated[
        float, typer.Option("--max-mb", min=0, help="With --report: how much of the conversations goes in.")
    ] = 10,
    everything: Annotated[
        bool, typer.Option("--all", help="With --report: all conversations, however large.")
    ] = False,
    no_text: Annotated[
        bool, typer.Option("--no-text", help="With --report: numbers only, nothing that anybody said.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="With --report: overwrite the file.")] = False,
) -> StreamResult | OperationResult:
    """Look at evaluations, training runs and rubric results of this machine in a browser, until Ctrl-C.

    It only reads, and only the browser that opens the printed address is let in. The same command again opens the viewer
    that is there already.

    Examples:
        osmosis view
        osmosis view calm-fern-1
        osmosis view ~/runs --no-open --port 8080
        osmosis view calm-fern-1 --report calm-fern-1.html
    """
    if report is not None:
        from osmosis_ai.viewer.report import RunReportOptions

        options = RunReportOptions(int(max_mb * 2**20), everything, text=not no_text)
        return _written(run, report, options, overwrite=force)
    from osmosis_ai.services.viewing import open_viewer

    found = open_viewer(run, host=host, port=port)
    message = Column("", value=lambda item: str(item["message"]))
    return StreamResult(items=_shown(found, opens=not no_open), columns=[message])


def _written(run: str | None, file: Path, options: RunReportOptions, *, overwrite: bool) -> OperationResult:
    from osmosis_ai.services.viewing import report_run

    output = current()
    if options.text:
        output.note(
            "What goes in: the run's numbers and settings, names of secrets, and what dataset, models, tools and graders "
            "said. With --no-text: numbers only."
        )
    name, content = report_run(run, file, options, overwrite=overwrite)
    left_out = content.conversations_left_out
    more = f", {left_out:,} left out (--max-mb, --all)" if left_out else ""
    return OperationResult(
        operation="view.report",
        message=f"Wrote {shown_path(file)}: {content.samples:,} samples, {content.conversations:,} conversations{more}",
        resource={"run": name, "path": str(file), "bytes": file.stat().st_size, **asdict(content)},
    )


def _shown(found: ViewerAddress, *, opens: bool) -> Iterator[dict[str, Any]]:
    """Yield the one line that says where to look, and end when the viewer has."""
    from osmosis_ai.cli.output.envelopes import result_envelope

    output = current()
    yield result_envelope(_result(found))
    if is_remote():
        output.note(f"On your own machine, then open the address there:  {tunnel_command(found.port)}")
    elif opens and open_browser(found.address):
        output.note("Your browser should show it now.")
    if not found.has_own_name:
        output.note(
            "Its cookie is of 127.0.0.1, which every server of this machine gets to see: mind that where others run theirs."
        )
    if found.running is None:
        return
    output.note("It only reads. Ctrl-C ends it.")
    found.running.run()


def _result(found: ViewerAddress) -> OperationResult:
    already = " (already open)" if found.running is None else ""
    return OperationResult(
        operation="view",
        message=f"The runs of {shown_path(found.place)} are at {found.address}{already}",
        resource={
            "place": str(found.place),
            "url": found.address,
            "port": found.port,
            "already_open": found.running is None,
        },
    )
