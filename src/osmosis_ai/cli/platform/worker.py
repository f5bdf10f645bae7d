"""`osmosis platform worker`: this machine executes runs of a platform that is elsewhere."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from osmosis_ai.cli.options import parse_duration
from osmosis_ai.cli.output.results import OperationResult
from osmosis_ai.errors import OsmosisError
from osmosis_ai.files import is_read_by_all

if TYPE_CHECKING:
    from osmosis_ai.platform.runs.work.worked_runs import WorkedRun

_LONGEST_CREDENTIAL = 256
# As the worker protocol has it (`WorkerOffer`).
_MOST, _MOST_GPUS, _MOST_LABELS = 1_000_000_000, 65_535, 64
NumberT = TypeVar("NumberT", int, float)
_WORDS = {
    "ended": "done",
    "left": "put aside",
    "refused": "left, because its token is not taken any more",
    "not_mine": "given back, not begun",
    "lease_lost": "taken over by another worker, or ended",
    "set_back": "set back by this machine or the platform",
    "store_away": "waits for the platform's store",
    "died": "its worker died",
}


def worker(
    pool: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Take runs that name this pool under [advanced.execution].",
            show_default=False,
        ),
    ] = None,
    run: Annotated[
        str | None,
        typer.Option(
            metavar="ID",
            help="Take this run alone, and end with it or with the process that started this one.",
            show_default=False,
        ),
    ] = None,
    url: Annotated[
        str | None,
        typer.Option(help="URL of the platform (default: the one of this directory).", show_default=False),
    ] = None,
    token_file: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Read the worker token, or the run's ticket, from this file; `-` is stdin.",
            show_default=False,
        ),
    ] = None,
    token_env: Annotated[
        str | None,
        typer.Option(metavar="VARIABLE", help="Read it from this variable.", show_default=False),
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="End after one run.")] = False,
    slots: Annotated[int, typer.Option(min=1, max=1024, help="Runs to execute at a time.")] = 1,
    idle_exit: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION",
            help="End after so long without a run: 90, 90s, 10m, 2h (default: never; with --run 10m).",
            show_default=False,
        ),
    ] = None,
    labels: Annotated[
        str | None,
        typer.Option(
            metavar="A,B",
            help="What this machine is known by: runs whose config asks for labels go to workers that have all of them.",
            show_default=False,
        ),
    ] = None,
    cpus: Annotated[
        float | None,
        typer.Option(min=0.1, help="Processors for each run (default: this machine's).", show_default=False),
    ] = None,
    gpus: Annotated[int, typer.Option(min=0, help="GPUs for each run.")] = 0,
    memory_gb: Annotated[
        float | None, typer.Option(min=0.1, help="Memory for each run, in GiB.", show_default=False)
    ] = None,
) -> OperationResult:
    """Execute runs of a platform on this machine, until Ctrl-C or SIGTERM.

    It reaches the platform over HTTPS and nothing reaches it. SIGTERM puts its runs aside: they send what they have, and
    another worker goes on with them; a second one ends at once. Its files are in OSMOSIS_HOME, and rollouts run in
    its sandbox (OSMOSIS_ISOLATION, OSMOSIS_NETWORK).

    Examples:
        osmosis platform worker --url https://osmosis.example.org --pool gpu --token-file gpu-worker.token --gpus 1
        osmosis platform worker --url https://osmosis.example.org --run run_3f2a9c10 --token-env OSMOSIS_TICKET
    """
    from osmosis_ai.api.active_platform import active_platform
    from osmosis_ai.api.platform_url import normalize_platform_url
    from osmosis_ai.cli.output.context import current
    from osmosis_ai.cli.platform.local_platform import platform_extra

    if (pool is None) == (run is None):
        raise typer.BadParameter("say which runs to take.", param_hint="one of '--pool' and '--run'")
    address = normalize_platform_url(url) if url is not None else active_platform().url
    with platform_extra():
        import alembic  # noqa: F401 - the extra is missed here, before there is a run

        from osmosis_ai.driving.server_count import granted_cores
        from osmosis_ai.platform.runs.work.host_terms import HostTerms
        from osmosis_ai.platform.runs.work.hosting import host_runs
        from osmosis_ai.platform.runs.work.platform_link import StoreAwayError
    terms = HostTerms(
        pool=pool,
        run_id=run,
        slots=slots,
        once=once,
        idle_exit_s=parse_duration(idle_exit, "--idle-exit") if idle_exit is not None else None,
        labels=_labels(labels),
        cpus=_at_most(_MOST, cpus, "--cpus") if cpus is not None else float(granted_cores()),
        gpus=_at_most(_MOST_GPUS, gpus, "--gpus"),
        memory_gb=_at_most(_MOST, memory_gb, "--memory-gb") if memory_gb is not None else None,
    )
    try:
        worked = host_runs(address, _credential(token_file, token_env), terms, say=current().note)
    except StoreAwayError as error:
        if run is None:
            raise
        return _waits_for_store(address, error)
    return _result(address, worked, is_single=run is not None or once)


def _waits_for_store(address: str, error: OsmosisError) -> OperationResult:
    from osmosis_ai.platform.runs.execute.worker_process import STORE_AWAY

    return OperationResult(
        operation="platform.worker",
        status="partial",
        message=f"The run was not begun: {error.message}",
        resource={"platform_url": address, "runs": []},
        exits_with=STORE_AWAY,
    )


def _at_most(most: int, given: NumberT, option: str) -> NumberT:
    """Return what a machine is said to have of something, if it is a number that a platform can be told."""
    if not given <= most:  # also what is no number at all
        raise typer.BadParameter(f"must be a number up to {most:,}.", param_hint=f"'{option}'")
    return given


def _labels(written: str | None) -> tuple[str, ...]:
    from osmosis_ai.config.execution import label_name

    found = dict.fromkeys(filter(None, (label.strip() for label in (written or "").split(","))))
    for label in found:
        try:
            label_name(label)
        except ValueError as error:
            raise typer.BadParameter(f"'{label}' {error}.", param_hint="'--labels'") from None
    if len(found) > _MOST_LABELS:
        raise typer.BadParameter(f"a machine has {_MOST_LABELS} labels at most.", param_hint="'--labels'")
    return tuple(found)


def _result(address: str, worked: list[WorkedRun], *, is_single: bool) -> OperationResult:
    from osmosis_ai.platform.runs.execute.worker_process import STORE_AWAY

    bad = [run for run in worked if run.ending in ("refused", "died", "set_back", "store_away")]
    waits_for_store = is_single and any(run.ending == "store_away" for run in worked)
    told = "; ".join(f"{run.name}: {_WORDS[run.ending or 'ended']}" for run in worked[-5:])
    return OperationResult(
        operation="platform.worker",
        status="partial" if bad else "success",
        message=f"Worked on {len(worked)} run{'' if len(worked) == 1 else 's'} of {address}"
        + (f" ({told})." if worked else "."),
        resource={
            "platform_url": address,
            "runs": [
                {"id": run.id, "name": run.name, "attempt": run.attempt, "ending": run.ending}
                for run in worked
            ],
        },
        exits_with=STORE_AWAY if waits_for_store else None,
    )


def _credential(file: str | None, variable: str | None) -> str:
    """Return the worker's token from where it was said to be, which is never the command line."""
    from osmosis_ai.cli.output.context import current

    if (file is None) == (variable is None):
        raise typer.BadParameter(
            "say where the worker token is.", param_hint="one of '--token-file' and '--token-env'"
        )
    if variable is not None:
        where, text = f"the variable {variable}", os.environ.pop(variable, "")
    elif file == "-":
        where, text = "stdin", current().stdin.readline(_LONGEST_CREDENTIAL + 2)
    else:
        where, text = str(file), _read(Path(str(file)))
    found = text.strip()
    if not re.fullmatch(rf"[!-~]{{1,{_LONGEST_CREDENTIAL}}}", found):
        raise OsmosisError(
            f"{where} holds no worker token.",
            hint="make one on the platform's machine: "
            "osmosis platform worker-token create --pool NAME --output FILE",
        )
    return found


def _read(path: Path) -> str:
    """Return how a file begins; say so where everybody on this machine can read it, too."""
    from osmosis_ai.cli.output.context import current

    try:
        with path.open(encoding="ascii", errors="replace") as file:
            if is_read_by_all(os.fstat(file.fileno())):
                current().warn(
                    f"every user of this machine can read {path}, and take runs with it: chmod 600 {path}"
                )
            return file.read(_LONGEST_CREDENTIAL + 2)
    except OSError as error:
        raise OsmosisError(f"{path} cannot be read: {error.strerror or error}.") from error
