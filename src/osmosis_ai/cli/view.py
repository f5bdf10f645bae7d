"""`osmosis view`: the runs of this machine in a browser, without platform, login or network."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import asdict
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from osmosis_ai.cli.completion import complete_local_run
from osmosis_ai.cli.connection import open_browser, platform_when_needed
from osmosis_ai.cli.options import NoTextOption, OverwriteReportOption
from osmosis_ai.cli.output.context import current
from osmosis_ai.cli.output.formats import shown_path
from osmosis_ai.cli.output.reports import RUBRIC_HOLDS, TRAINING_HOLDS, report_file, require_report
from osmosis_ai.cli.output.results import Column, OperationResult, StreamResult
from osmosis_ai.files import cache_dir

if TYPE_CHECKING:
    from osmosis_ai.services.report_files import ReportFile
    from osmosis_ai.viewer.reports import RunReportOptions
    from osmosis_ai.viewer.serving import RunningViewer

MOST_MB = 10.0
_EVALUATION_HOLDS = (
    "the run's numbers, names, and names of secrets",
    "its settings, and what dataset, models, tools, graders and judges said",
)


def view(
    context: typer.Context,
    run: Annotated[
        str | None,
        typer.Argument(
            metavar="[RUN|DIR]",
            help="Local run or a directory with runs (default: the workspace), with --report also platform:NAME.",
            autocompletion=complete_local_run,
        ),
    ] = None,
    port: Annotated[
        int, typer.Option("--port", "-p", min=0, max=65535, help="Port to listen on (0: any free port).")
    ] = 0,
    host: Annotated[str, typer.Option(help="Loopback address to listen on.")] = "127.0.0.1",
    no_open: Annotated[bool, typer.Option("--no-open", help="Do not open a browser.")] = False,
    report: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.html", help="Write the run into one HTML file instead of starting a server."
        ),
    ] = None,
    max_mb: Annotated[
        float, typer.Option(min=0, help="Limit of an evaluation's conversations in a report, in MB.")
    ] = MOST_MB,
    everything: Annotated[
        bool, typer.Option("--all", help="Write all conversations into the report, whatever their size.")
    ] = False,
    no_text: NoTextOption = False,
    force: OverwriteReportOption = False,
) -> StreamResult | OperationResult:
    """Browse local runs in a web browser.

    The server shows the evaluations, training runs and rubric results of this machine until Ctrl-C. It changes
    nothing and accepts only the browser that opens the printed address.

    Examples:
        osmosis view
        osmosis view calm-fern-1
        osmosis view ~/runs --no-open --port 8080
        osmosis view calm-fern-1 --report calm-fern-1.html
        osmosis view platform:amber-otter-42 --report amber-otter-42.html
    """
    if not isfinite(max_mb):
        raise typer.BadParameter("must be a finite number, for instance 10.", param_hint="'--max-mb'")
    # A size that is given is also enforced on reports without conversations.
    source = context.get_parameter_source("max_mb")
    sized = source is not None and source.name != "DEFAULT"
    if report is None:
        require_report({"--max-mb": sized, "--all": everything, "--no-text": no_text, "--force": force})
    file = report_file(
        report,
        overwrite=force,
        no_text=no_text,
        holds={"eval": _EVALUATION_HOLDS, "training": TRAINING_HOLDS, "rubric": RUBRIC_HOLDS},
    )
    if file is not None:
        from osmosis_ai.viewer.reports import RunReportOptions

        options = RunReportOptions(int(max_mb * 2**20), everything, text=not no_text, is_limited=sized)
        return _written(run, file, options)
    from osmosis_ai.services.viewing import open_viewer

    place, address, running = open_viewer(run, host=host, port=port)
    items = _shown(place, address, running, opens=not no_open)
    return StreamResult(items=items, columns=[Column("", "message")])


def _written(run: str | None, file: ReportFile, options: RunReportOptions) -> OperationResult:
    from osmosis_ai.services.viewing import report_run
    from osmosis_ai.ui.numbers import amount

    with platform_when_needed() as client:
        name, content = report_run(run, file, options, client=client)
    counts = (
        {} if content is None else {key: count for key, count in asdict(content).items() if key != "places"}
    )
    held = ""
    if content is not None:
        held = f": {amount(content.samples, 'sample')}, {amount(content.conversations, 'conversation')}"
        if content.conversations_left_out:
            held += f", {content.conversations_left_out:,} omitted (--all includes them)"
    return OperationResult(
        operation="view.report",
        message=f"Wrote {shown_path(file.path)}{held}",
        resource={"run": name, "path": str(file.path), "bytes": file.path.stat().st_size, **counts},
    )


def _shown(place: Path, address: str, running: RunningViewer, *, opens: bool) -> Iterator[dict[str, Any]]:
    """Yield one line with the address, and end with the viewer."""
    from osmosis_ai.viewer.serving import bracketed, leave_opening_page

    output = current()
    result = OperationResult(
        operation="view",
        message=f"Runs of {shown_path(place)}: {address}",
        resource={"place": str(place), "url": address, "port": running.port},
    )
    yield result.envelope()
    if os.environ.get("SSH_CONNECTION") or os.environ.get("SSH_TTY"):
        output.note(f"From your own machine: {_tunnel_command(bracketed(running.host), running.port)}")
    # All users can see a process's arguments, so the browser opens a file that redirects to the address.
    elif (
        opens
        and (page := leave_opening_page(cache_dir(), address)) is not None
        and open_browser(page.absolute().as_uri())
    ):
        output.note("Opened in your browser.")
    output.note("Press Ctrl-C to stop.")
    running.run()


def _tunnel_command(host: str, port: int) -> str:
    """Return the command that forwards a port of the user's own machine to this machine's loopback."""
    import getpass
    import socket

    try:
        user = f"{getpass.getuser()}@"
    except (KeyError, OSError):
        user = ""
    here = "" if host == "127.0.0.1" else f"{host}:"
    return f"ssh -N -L {here}{port}:{host}:{port} {user}{socket.gethostname()}"
