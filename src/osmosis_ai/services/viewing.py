"""`osmosis view`: resolve the runs to show, and start the viewer."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import quote, unquote

from osmosis_ai.api.client import PlatformClient
from osmosis_ai.api.http_errors import PlatformError
from osmosis_ai.errors import MissingExtraError, NotFoundError, OsmosisError, WorkspaceRequiredError
from osmosis_ai.files import cache_dir, expanded
from osmosis_ai.services.downloaded_runs import as_local_run, fetched_run, is_downloaded_run
from osmosis_ai.services.eval_runs.resolver import (
    evals_directory,
    find_local_run,
    name_elsewhere,
    named_on_platform,
    resolve_run,
)
from osmosis_ai.services.report_files import ReportFile
from osmosis_ai.services.training_runs import describe_run, is_logged_in, report_training
from osmosis_ai.viewer.access import SECTIONS
from osmosis_ai.viewer.local.source import LocalSource
from osmosis_ai.viewer.local_runs import RunKind, RunPlace, RunPlaces, is_result, kind_of
from osmosis_ai.workspace.layout import find_workspace

if TYPE_CHECKING:
    from osmosis_ai.viewer.reports import ReportContent, RunReportOptions
    from osmosis_ai.viewer.serving import RunningViewer

_PATIENCE_S = 0.7
"""How long a page reads a journal or runs before it shows partial data; some pages do so twice."""


class ViewedPlace(NamedTuple):
    """A directory to show, and its initial page."""

    root: Path
    path: str = "/"


def open_viewer(reference: str | None, *, host: str, port: int) -> tuple[Path, str, RunningViewer]:
    """Return the place of the runs, a one-time URL for one browser, and their viewer, with a reserved port.

    Args:
        reference: a directory or local run; the workspace or the current directory when None.
        host: a loopback address.
        port: 0 for any free port.
    """
    try:
        from osmosis_ai.viewer.serving import RunningViewer, loopback_address
    except ModuleNotFoundError as error:
        raise MissingExtraError("eval", error.name or "fastapi") from error
    host = loopback_address(host)
    found, cache = viewed_place(reference), cache_dir()
    if found.path == "/" and is_downloaded_run(found.root):
        raise _on_platform(reference or str(found.root), found.root.name)
    source = LocalSource(found.root, cache_dir=cache, patience_s=_PATIENCE_S)
    running = RunningViewer(source, cache_dir=cache, host=host, port=port)
    return found.root, running.address(found.path), running


def report_run(
    reference: str | None,
    report: ReportFile,
    options: RunReportOptions,
    *,
    client: Callable[[], PlatformClient] | None = None,
) -> tuple[str, ReportContent | None]:
    """Write a run as a single-file report, and return its name and, for an evaluation, the report's contents.

    Args:
        reference: as for :func:`open_viewer`; a directory with exactly one run stands for it. Downloaded runs
            and `platform:NAME` are accepted, too.
        options: limits for conversations or records.
        client: connects to the platform; None restricts the search to this machine.
    """
    word = named_on_platform(reference) if client is not None and reference is not None else None
    if client is not None and word is not None:
        report.check()
        return _report_of_platform(word, report, options, client)
    found = viewed_place(reference)
    path = found.path if found.path != "/" or reference is None else _only_run(found.root)
    if path == "/" and is_downloaded_run(found.root):
        return _report_download(found.root, report, options)
    if path == "/":
        raise OsmosisError(
            f"Report needs exactly one run: {reference or found.root}.",
            hint="osmosis view RUN|DIR --report FILE.html; `osmosis eval list` shows the runs of this machine",
        )
    return _report(found.root, path, report, options, cache=cache_dir())


def _report_of_platform(
    word: str, report: ReportFile, options: RunReportOptions, client: Callable[[], PlatformClient]
) -> tuple[str, ReportContent | None]:
    """Report the platform's evaluation or, if missing, training run of that name."""
    try:
        name = resolve_run(f"platform:{word}", client=client).name
    except PlatformError as missing:
        if missing.status != 404 or missing.refuses_git_scope:
            raise
        return _report_training_there(word, report, options, client(), missing), None
    with fetched_run(client(), name, conversations=options.text) as directory:
        return _report_download(directory, report, options)


def _report_training_there(
    word: str, report: ReportFile, options: RunReportOptions, client: PlatformClient, missing: PlatformError
) -> str:
    """Report a platform's training run and return its name; raise ``missing`` if it does not exist."""
    try:
        found = describe_run(client, word)
    except PlatformError as error:
        if error.status != 404 or error.refuses_git_scope:
            raise
        missing.hint = missing.hint or (
            "`osmosis eval list` and `osmosis train list` name its runs; what judges said is in files of this machine: "
            "osmosis view FILE.json --report FILE.html"
        )
        raise missing from None
    _require_no_limit(word, "training", options)
    report_training(found, report)
    return found.run.name or found.run.id


def _report_download(
    download: Path, report: ReportFile, options: RunReportOptions
) -> tuple[str, ReportContent | None]:
    with as_local_run(download) as directory:
        # The cache is removed with the temporary directory.
        return _report(directory, _only_run(directory), report, options, cache=directory.parent)


def _report(
    root: Path, path: str, report: ReportFile, options: RunReportOptions, *, cache: Path
) -> tuple[str, ReportContent | None]:
    from osmosis_ai.viewer.reports import write_judging_report, write_run_report, write_training_report

    section, _, quoted = path.strip("/").partition("/")
    source, name = LocalSource(root, cache_dir=cache), unquote(quoted)
    kind = next(kind for kind, its_section in SECTIONS.items() if its_section == section)
    detail = source.run(kind, name)
    _require_no_limit(name, kind, options)
    if kind == "rubric" and not detail.summary_numbers:
        raise OsmosisError(detail.problems[0])
    if kind == "eval":
        source.require_samples(name)
    with report.opened(kind) as file:
        if kind == "eval":
            return name, write_run_report(file, source, name, options)
        if kind == "training":
            write_training_report(file, detail, source.curves(name), text=options.text)
        else:
            write_judging_report(file, detail, text=options.text, everything=options.everything)
    return name, None


def _require_no_limit(name: str, kind: RunKind, options: RunReportOptions) -> None:
    """Reject a conversation limit for a report that has no conversations."""
    if options.is_limited and kind != "eval":
        what = {"training": "training run", "rubric": "rubric result"}[kind]
        raise OsmosisError(
            f"--max-mb limits the conversations of an evaluation, and {name} is a {what}: its report has none.",
            hint="leave out --max-mb; --no-text makes the file smaller",
        )


def _only_run(root: Path) -> str:
    """Return the page of the only run below a directory; "/" unless there is exactly one."""
    places = RunPlaces(root).all()
    return _page_path(places[0]) if len(places) == 1 else "/"


def viewed_place(reference: str | None) -> ViewedPlace:
    """Resolve a command-line reference; errors as in :func:`open_viewer`."""
    if reference is None:
        return ViewedPlace(_around(Path.cwd()))
    given = expanded(reference)
    try:
        if given.is_file():
            if is_result(given):
                return ViewedPlace(file := given.resolve(), _page_of(file, file) or "/")
            raise _not_viewed(reference, given)
        directory = given.resolve() if given.is_dir() else None
    except (OSError, ValueError) as error:
        raise NotFoundError(f"{reference[:200]!r} cannot be opened: {error}.") from error
    run = directory if directory is not None else _named_run(reference)
    if kind_of(run) is None:
        return ViewedPlace(run)
    # In its workspace, a run can be compared with others.
    root = _around(run)
    return (
        ViewedPlace(root, path)
        if (path := _page_of(run, root))
        else ViewedPlace(run, _page_of(run, run) or "/")
    )


def _not_viewed(reference: str, file: Path) -> OsmosisError:
    if kind_of(file.parent) is not None:
        return OsmosisError(
            f"{reference} is a file of a run; view its directory instead.",
            hint=f"osmosis view {shlex.quote(str(file.parent))}",
        )
    return OsmosisError(
        f"{reference} is not a run, a directory with runs or a rubric result.",
        hint="osmosis eval list shows the runs of this machine",
    )


def _on_platform(reference: str, name: str) -> OsmosisError:
    """Return the error about a platform's run, or its download: only a report shows it."""
    report = shlex.quote(f"{name[:200]}.html")
    return OsmosisError(
        f"{reference[:200]} is a platform's run; its pages are there.",
        hint=f"osmosis view {shlex.quote(reference[:200])} --report {report}",
    )


def _named_run(reference: str) -> Path:
    if (name := named_on_platform(reference)) is not None:
        raise _on_platform(reference, name)
    try:
        return find_local_run(reference).resolve()
    except NotFoundError as missing:
        with suppress(WorkspaceRequiredError):
            if is_downloaded_run(download := evals_directory() / reference):
                return download.resolve()
        name = name_elsewhere(reference, missing)
        if not missing.details["nearest"] and is_logged_in():
            there = _on_platform(f"platform:{name}", name).hint
            missing.hint = f"{missing.hint}; if it is on the platform: {there}"
        raise
    except WorkspaceRequiredError:
        raise NotFoundError(
            f"Directory or run '{reference[:200]}' not found.",
            hint="osmosis view DIR shows the runs of a directory",
        ) from None


def _around(directory: Path) -> Path:
    """Return the workspace around a directory, or the directory itself."""
    try:
        return find_workspace(directory).root.resolve()
    except OsmosisError:
        return directory.resolve()


def _page_of(run: Path, root: Path) -> str | None:
    """Return the page of a run below ``root``; None if it is not there."""
    return next((_page_path(place) for place in RunPlaces(root).all() if place.path == run), None)


def _page_path(place: RunPlace) -> str:
    return f"/{SECTIONS[place.kind]}/{quote(place.name, safe='')}"
