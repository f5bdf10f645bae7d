"""`osmosis platform start` and the other commands about processes and data: status, stop, backup, restore, worker."""

from __future__ import annotations

import logging
import math
import os
import re
import signal
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from osmosis_ai._version import __version__
from osmosis_ai.cli.options import parse_duration
from osmosis_ai.cli.output import formats
from osmosis_ai.cli.output.context import current
from osmosis_ai.cli.output.results import (
    Column,
    DetailResult,
    OperationResult,
    Row,
    Status,
    StreamResult,
    Styled,
    Timestamp,
)
from osmosis_ai.cli.platform.local_platform import fields, local_platform, platform_extra
from osmosis_ai.errors import ConflictError, NotFoundError, OsmosisError
from osmosis_ai.files import is_read_by_all
from osmosis_ai.ui.numbers import amount

if TYPE_CHECKING:
    from osmosis_ai.platform.config import PlatformConfig
    from osmosis_ai.platform.db.tables import DbKnownWorker
    from osmosis_ai.platform.server import RunningPlatform


_NOT_READY = "Stopped before the platform was ready."
_STEPS, _REQUESTS = "steps", "http.requests"


def start(
    host: Annotated[
        str | None, typer.Option(help="Address to listen on (OSMOSIS_PLATFORM_HOST; default: this machine).")
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=65535,
            help="Port to listen on, 0 for a free one (OSMOSIS_PLATFORM_PORT; default: 8733).",
        ),
    ] = None,
    public_url: Annotated[
        str | None, typer.Option(help="HTTPS URL of the proxy in front of the platform (OSMOSIS_PUBLIC_URL).")
    ] = None,
    login: Annotated[
        bool, typer.Option("--login", help="Also log in to the platform as its administrator.")
    ] = False,
    log_format: Annotated[
        Literal["text", "json"],
        typer.Option(
            help="Format of the log on stderr; `json` writes one object per line and logs every request."
        ),
    ] = "text",
) -> StreamResult:
    """Run the platform until Ctrl-C or `osmosis platform stop`.

    One line reports when the platform is ready.

    The data is in OSMOSIS_HOME. The first start creates an administrator and a workspace and prints the password.
    Runs in progress continue at the next start.

    Examples:
        osmosis platform start --login
        osmosis platform start --host 0.0.0.0 --public-url https://osmosis.example.org
        osmosis platform start --log-format json
    """
    from osmosis_ai.cli.graceful_stop import signals_raise

    logs_json = log_format == "json"
    items: Iterator[dict[str, Any]] = iter(())
    try:
        # Loading a platform takes seconds on a busy machine.
        with signals_raise((signal.SIGTERM, signal.SIGINT), lambda _: _EndedWhileLoadingError()):
            config = _config(host, port, public_url)
        items = _serve(config, login, logs_json)
    except _EndedWhileLoadingError:
        if not logs_json:  # A JSON log has no line before it exists.
            current().note(_NOT_READY)
    return StreamResult(items=items, columns=[Column("", "message")])


class _EndedWhileLoadingError(KeyboardInterrupt):
    """A signal ended the start before it had begun anything."""


def _config(host: str | None, port: int | None, public_url: str | None) -> PlatformConfig:
    """Load all that a platform needs, and return its settings."""
    from osmosis_ai.api.platform_url import normalize_platform_url

    with platform_extra():
        import osmosis_ai.platform.server  # noqa: F401 - all it needs, or the extra is missed here
        from osmosis_ai.platform.config import from_environment

    config = from_environment()
    return replace(
        config,
        host=config.host if host is None else host,
        port=config.port if port is None else port,
        public_url=config.public_url if public_url is None else normalize_platform_url(public_url),
    )


def _serve(config: PlatformConfig, login: bool, logs_json: bool) -> Iterator[dict[str, Any]]:
    """Yield the one line that says it is ready, and end when the platform has."""
    from osmosis_ai.platform.server import StartEndedError, run_platform

    logging.getLogger().addHandler(_LogToStderr(is_json=logs_json, level=logging.WARNING))
    for told in (_STEPS, _REQUESTS) if logs_json else ():
        logger = logging.getLogger(f"osmosis_ai.platform.{told}")
        logger.setLevel(logging.INFO)
        logger.propagate = False
        logger.addHandler(_LogToStderr(is_json=True))
    note = logging.getLogger(f"osmosis_ai.platform.{_STEPS}").info if logs_json else current().note
    try:
        with run_platform(config) as platform:
            saved_in = _log_in(platform) if login else None
            ready = _ready(platform, saved_in)
            yield ready.envelope()
            # A log is kept and read by others: it gets no password.
            for line in [ready.sentence] if logs_json else ready.next_steps:
                note(line)
            platform.wait()
            note("Stopping. Runs in progress continue at the next start.")
    except StartEndedError:
        note(_NOT_READY)


def _ready(platform: RunningPlatform, saved_in: str | None) -> OperationResult:
    url, first = platform.config.base_url, platform.first_login
    where = "Run once in each Git repository with rollouts (the saved login works in all of them):"
    steps = [
        f"Data: {platform.config.home}",
        where if saved_in else "Use it in the Git repository of your rollouts:",
        f"  osmosis --platform {url} login",
        "  osmosis platform connect .",
    ]
    if first is not None:
        shown = f"user {first.email}, password {first.password} (not shown again)"
        steps.insert(0, f"First start: {shown}, workspace {first.workspace_name}.")
    return OperationResult(
        operation="platform.start",
        message=f"The platform is ready at {url}",
        resource={
            "url": url,
            "pid": platform.process.pid,
            "home": str(platform.config.home),
            "version": platform.process.version,
            "first_login": first
            and {"email": first.email, "password": first.password, "workspace": first.workspace_name},
            "login": saved_in and {"token_store": saved_in},
        },
        next_steps=steps,
    )


def _log_in(platform: RunningPlatform) -> str:
    """Save a login of the administrator, unless one is there that works; return where its token is."""
    from osmosis_ai.api.credentials import Credentials, CredentialStore
    from osmosis_ai.api.models.auth import User
    from osmosis_ai.platform.accounts import TokenRejected

    store, url, accounts = (
        CredentialStore(current().warn),
        platform.config.base_url,
        platform.services.accounts,
    )
    try:
        saved = store.load(url)
        if saved is not None:
            accounts.authenticate(saved.token)
            return saved.source
    except TokenRejected:
        pass  # of a platform that was at this address before
    except OsmosisError as error:
        current().warn(error.message, code=error.code)
    admin = next((user for user in accounts.users() if user.is_admin and user.disabled_at is None), None)
    if admin is None:
        raise OsmosisError(
            "Platform has no administrator.",
            hint="add one with `osmosis platform user add EMAIL --admin`, or use `osmosis login`",
        )
    token, plain = accounts.create_token(admin.id, name="osmosis platform start --login")
    return store.save(
        Credentials(
            token=plain,
            platform_url=url,
            source="file",
            user=User(id=admin.id, email=admin.email, name=admin.name),
            token_id=token.id,
            expires_at=token.expires_at,
        )
    )


class _LogToStderr(logging.Handler):
    """Writes what the platform logs to stderr: an object or a line of text each."""

    def __init__(self, *, is_json: bool, level: int = logging.NOTSET) -> None:
        super().__init__(level)
        self._is_json = is_json

    def emit(self, record: logging.LogRecord) -> None:
        from osmosis_ai.platform.http.middleware import REQUEST_ID

        output, level = current(), record.levelname.lower()
        if not self._is_json and output.mode != "json":
            output.say(f"{level}: {self.format(record)}")
            return
        if not self._is_json:
            output.say_json({"log": {"level": level, "logger": record.name, "message": self.format(record)}})
            return
        moment = datetime.fromtimestamp(record.created, timezone.utc)
        line = {
            "time": moment.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": level,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if request_id := REQUEST_ID.get():
            line["request_id"] = request_id
        if record.exc_info:
            line["exception"] = logging.Formatter().formatException(record.exc_info)
        output.say_json(line)


_MOST_SHOWN = 20
_PATIENCE_S = 15.0
_SILENT = timedelta(minutes=3)
"""A healthy worker reports once a minute."""
_CHECKS = {"blobs": "files", "migrations": "schema"}
_DEBUGGABLE = "yes (OSMOSIS_DEBUGGABLE): programs of its user can read its memory"


def status() -> DetailResult:
    """Show the local platform and its workers.

    Exits with 1 if the platform is not running.

    Examples:
        osmosis platform status
    """
    from osmosis_ai.platform.config import RayCluster, data_of_environment
    from osmosis_ai.platform.process_state import running_platform

    config = data_of_environment()
    process = running_platform(config.home)
    if process is None:
        raise NotFoundError(
            f"No platform is running in {config.home}.",
            hint="start it with `osmosis platform start`, or set OSMOSIS_HOME",
        )
    state, problems = _state(process.local_url)
    # Only the same release can read the database.
    known = _workers(config) if (state, process.version) == ("running", __version__) else []
    cluster: dict[str, Any] | None = None
    if process.ray is not None:
        from osmosis_ai.platform.ray_jobs import cluster_problem

        ray = RayCluster.from_json(process.ray)
        cluster = {"address": ray.address, "problem": cluster_problem(ray)}
    optional: list[Row] = [
        ("Runs on", process.executor),
        ("Cluster", Styled(cluster["problem"], "warn") if cluster and cluster["problem"] else None),
        ("Isolation", process.isolation),
        ("Files", process.blobs),
        *[("Warning", Styled(warning, "warn")) for warning in process.warnings],
        ("Debuggable", _DEBUGGABLE if process.debuggable else None),
    ]
    rows: list[Row] = [
        ("Status", Status(state)),
        *[(_CHECKS.get(name, name).capitalize(), f"{why} (see the log)") for name, why in problems.items()],
        ("URL", process.url),
        ("Process", process.pid),
        ("Started", Timestamp(process.started_at)),
        ("Version", process.version),
        ("Data", str(config.home)),
        *[row for row in optional if row[1]],
        *[("Worker", _describe_worker(*worker)) for worker in known[:_MOST_SHOWN]],
    ]
    if len(known) > _MOST_SHOWN:
        rows.append(("Workers", f"{len(known)} in total, all with --json"))
    return DetailResult(
        title="Platform",
        data={
            **fields(process, "url", "local_url", "pid", "blobs", "version", "started_at"),
            **fields(process, "debuggable", "isolation", "executor", "warnings"),
            "status": state,
            "problems": problems,
            "home": str(config.home),
            "ray": cluster,
            "workers": [
                {
                    **fields(worker, "machine", "pool", "labels", "cpus", "gpus", "memory_gb"),
                    **fields(worker, "sandbox", "sandbox_problem", "seen_at", runs=runs, heard_at=heard_at),
                }
                for worker, runs, heard_at in known
            ],
        },
        rows=rows,
    )


def _workers(config: PlatformConfig) -> list[tuple[DbKnownWorker, int, datetime]]:
    """Return the workers with a valid token, with their active shards and when last seen."""
    try:
        with local_platform(config) as platform:
            return platform.worker_access.known.all()
    except ConflictError as error:
        current().warn(f"Workers are not shown: {error.message} ({error.hint})", code="OTHER_DATABASE")
        return []


def _describe_worker(worker: DbKnownWorker, runs: int, heard_at: datetime) -> str:
    """Return a worker's resources and activity, in one line."""
    has = [
        f"{number:g} {unit}{'s' if unit != 'GiB' and number != 1 else ''}"
        for number, unit in ((worker.cpus, "CPU"), (worker.gpus, "GPU"), (worker.memory_gb, "GiB"))
        if number
    ]
    if worker.sandbox is not None:
        has.append("sandbox" if worker.sandbox else "no sandbox")
    labels = f" [{', '.join(worker.labels)}]" if worker.labels else ""
    does = f"executing {amount(runs, 'run')}" if runs else "idle"
    silence = datetime.now(timezone.utc) - heard_at
    if silence > _SILENT:
        does = f"last seen {formats.duration(silence.total_seconds())} ago"
    name, seen = formats.one_line(worker.machine or "unnamed"), formats.date(worker.seen_at)
    return f"{name} of {worker.pool}{labels}: {', '.join(has)}; {does}, last request {seen}"


def _state(local_url: str | None) -> tuple[str, dict[str, str]]:
    """Return the platform's status, and the failed checks: name -> reason."""
    if local_url is None:
        return "starting", {}
    import httpx

    try:
        with httpx.Client(base_url=local_url, timeout=_PATIENCE_S, trust_env=False) as client:
            health = client.get("/health")
            checks = client.get("/ready").json().get("checks", {})
    except (httpx.HTTPError, ValueError, AttributeError):
        return "unresponsive", {}
    problems = {name: why for name, why in checks.items() if why != "ok"}
    if not health.is_success:
        # What `/ready` says may be some seconds old.
        problems.setdefault("database", "unavailable")
    return "not ready" if problems else "running", problems


def stop(
    timeout: Annotated[
        float, typer.Option(min=0.1, help="Seconds to wait until the platform has stopped.")
    ] = 60.0,
) -> OperationResult:
    """Stop the local platform.

    Runs in progress continue at the next start.

    Examples:
        osmosis platform stop
    """
    from osmosis_ai.platform.config import data_of_environment
    from osmosis_ai.platform.process_state import stop_platform

    home = data_of_environment().home
    with current().status("Stopping the platform"):
        process = stop_platform(home, timeout_s=timeout)
    return OperationResult(
        operation="platform.stop",
        status="success" if process else "noop",
        message=f"Stopped the platform in {home}." if process else f"No platform is running in {home}.",
        resource={"home": str(home), "pid": process and process.pid},
    )


def backup(
    file: Annotated[Path, typer.Argument(help="File to write; compressed if it ends in .gz or .tgz.")],
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
    with_bucket: Annotated[
        bool, typer.Option("--with-bucket", help="Also back up the files in the bucket.")
    ] = False,
) -> OperationResult:
    """Back up the local platform, running or stopped.

    The file holds the rows of the database, datasets, results, Git mirrors and the encryption keys of the secrets. Keep
    it as safe as the platform itself. It leaves out files in a bucket (OSMOSIS_BLOBS_URL) unless you add --with-bucket.

    Examples:
        osmosis platform backup osmosis.tar.gz
        osmosis platform backup osmosis.tar.gz --with-bucket
    """
    with platform_extra():
        from osmosis_ai.platform.backup import create_backup
        from osmosis_ai.platform.config import from_environment

    config = from_environment()
    with current().status(f"Backing up {config.home}"):
        report = create_backup(config, file, overwrite=force, with_bucket=with_bucket)
    if report.missing_blobs:
        current().warn(
            f"Files of the database are missing from {config.blobs_shown}: {report.missing_blobs}. They were lost before "
            "this backup.",
            code="MISSING_FILES",
        )
    return OperationResult(
        operation="platform.backup",
        message=f"Wrote {report.path}: {amount(report.files, 'file')}, "
        f"{formats.size(report.path.stat().st_size)}.",
        resource={
            "path": str(report.path),
            "home": str(config.home),
            **report.facts(),
            "size_bytes": report.path.stat().st_size,
        },
        next_steps=[f"Restore it: OSMOSIS_HOME=NEW_DIRECTORY osmosis platform restore {report.path}"],
    )


def restore(
    file: Annotated[Path, typer.Argument(help="Backup written by `osmosis platform backup`.")],
    database_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="File with the URL of the database to restore into. Default: OSMOSIS_DATABASE_URL, else SQLite.",
        ),
    ] = None,
) -> OperationResult:
    """Restore a backup into an empty platform.

    The data directory (OSMOSIS_HOME) and the database must be empty, and also the bucket (OSMOSIS_BLOBS_URL) if the
    backup holds files. The kind of database and file store may change: to move a platform, back it up and restore it.
    If a restore is interrupted, run the same command again.

    Examples:
        osmosis platform restore osmosis.tar.gz
        osmosis platform restore osmosis.tar.gz --database-file database-url
    """
    with platform_extra():
        from osmosis_ai.platform.backup import restore_backup
        from osmosis_ai.platform.config import from_environment

    config = from_environment()
    if database_file is not None:
        config = _with_database(config, database_file)
    with current().status(f"Restoring {file}"):
        report = restore_backup(config, file)
    if report.missing_blobs:
        current().warn(
            f"Files of the database are missing from the backup: {report.missing_blobs}. They are in the platform's old "
            "bucket (set OSMOSIS_BLOBS_URL to it), or were lost before the backup.",
            code="MISSING_FILES",
        )
    settings = f'OSMOSIS_DATABASE_URL="$(cat {database_file})" ' if database_file else ""
    if os.environ.get("OSMOSIS_HOME"):
        settings = f"OSMOSIS_HOME={quote(str(config.home))} {settings}"
    return OperationResult(
        operation="platform.restore",
        message=f"Restored {config.home} from the backup of {formats.iso(report.created_at)}: "
        f"{amount(report.files, 'file')}, all verified.",
        resource={"home": str(config.home), **report.facts()},
        next_steps=[
            "Stop the old platform first: both would execute the runs in progress.",
            f"Start it: {settings}osmosis platform start",
        ],
    )


def _with_database(config: PlatformConfig, file: Path) -> PlatformConfig:
    """Return the settings with the database whose URL, perhaps with a password, is in ``file``."""
    from osmosis_ai.platform.db.engine import Database

    try:
        words = file.read_text(encoding="utf-8").split()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not a text file"
        raise OsmosisError(f"{file} cannot be read: {reason}.") from None
    if len(words) != 1:
        raise OsmosisError(
            f"{file} must contain exactly one URL (found {len(words)} words).",
            hint="write it as postgresql://user:password@host/database",
        )
    Database(words[0], named=str(file)).dispose()
    return replace(config, database_url=words[0])


_LONGEST_CREDENTIAL = 256
# The limits of the worker protocol.
_MOST, _MOST_GPUS, _MOST_LABELS = 1_000_000_000, 65_535, 64
_ENDINGS = {
    "ended": "done",
    "left": "released",
    "lease_lost": "continued by another worker or ended",
    "unreachable": "abandoned (platform unreachable)",
    "died": "worker process died",
}


def worker(
    pool: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Execute runs that name this pool under [advanced.execution]."),
    ] = None,
    run: Annotated[
        str | None,
        typer.Option(metavar="ID", help="Execute only this run, and end with it or with the parent process."),
    ] = None,
    url: Annotated[
        str | None, typer.Option(help="URL of the platform (default: the platform of this directory).")
    ] = None,
    token_file: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Read the worker token or ticket from this file; `-` is stdin."),
    ] = None,
    token_env: Annotated[
        str | None,
        typer.Option(
            metavar="VARIABLE", help="Read the worker token or ticket from this environment variable."
        ),
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="End after one run.")] = False,
    slots: Annotated[int, typer.Option(min=1, max=1024, help="Runs to execute at a time.")] = 1,
    idle_exit: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION",
            help="End after this time without a run: 90, 90s, 10m, 2h (default: never; with --run 10m).",
        ),
    ] = None,
    labels: Annotated[
        str | None,
        typer.Option(
            metavar="A,B",
            help="Labels of this machine; runs that require labels go to workers with all of them.",
        ),
    ] = None,
    cpus: Annotated[
        float | None,
        typer.Option(min=0.1, max=_MOST, help="Processors for each run (default: all of this machine)."),
    ] = None,
    gpus: Annotated[int, typer.Option(min=0, max=_MOST_GPUS, help="GPUs for each run.")] = 0,
    memory_gb: Annotated[
        float | None, typer.Option(min=0.1, max=_MOST, help="Memory for each run, in GiB.")
    ] = None,
) -> OperationResult:
    """Execute the runs of a platform on this machine.

    The worker connects to the platform over HTTPS and accepts no connections. Ctrl-C or SIGTERM releases its runs, and
    other workers continue them. A second signal stops the worker at once. Rollouts run in the worker's sandbox
    (OSMOSIS_ISOLATION, OSMOSIS_NETWORK), and its files are in OSMOSIS_HOME.

    Examples:
        osmosis platform worker --url https://osmosis.example.org --pool gpu --token-file gpu-worker.token --gpus 1
        osmosis platform worker --url https://osmosis.example.org --run run_3f2a9c10 --token-env OSMOSIS_TICKET
    """
    from osmosis_ai.api.platform_url import active_platform, normalize_platform_url

    meaning = "--pool executes all runs of a pool, --run only one run"
    _require_one(pool, run, "'--pool' and '--run'", meaning)
    for option, number in (("--cpus", cpus), ("--memory-gb", memory_gb)):
        if number is not None and math.isnan(number):
            raise typer.BadParameter("must be a number.", param_hint=f"'{option}'")
    address = normalize_platform_url(url) if url is not None else active_platform().url
    with platform_extra():
        import alembic  # noqa: F401 - the extra is missed here, before there is a run

        from osmosis_ai.controller.server_process import granted_cores
        from osmosis_ai.platform.worker.host import HostOptions, host_runs
    options = HostOptions(
        pool=pool,
        run_id=run,
        slots=slots,
        once=once,
        idle_exit_s=parse_duration(idle_exit, "--idle-exit") if idle_exit is not None else None,
        labels=_labels(labels),
        cpus=float(granted_cores()) if cpus is None else cpus,
        gpus=gpus,
        memory_gb=memory_gb,
    )
    token = _credential(token_file, token_env)
    executed = host_runs(address, token, options, say=current().note)
    endings: dict[tuple[str, str], dict[str, None]] = {}
    for shard in executed:
        known = endings.setdefault((shard.run_id, shard.run_name), {})
        known[_ENDINGS[shard.ending or "ended"]] = None
    bad = [shard for shard in executed if shard.ending in ("unreachable", "died")]
    last = "; ".join(f"{name}: {', '.join(known)}" for (_, name), known in [*endings.items()][-5:])
    return OperationResult(
        operation="platform.worker",
        status="partial" if bad else "success",
        message=f"Executed {amount(len(endings), 'run')} of {address}" + (f" ({last})." if executed else "."),
        resource={
            "platform_url": address,
            "runs": [
                {"id": shard.run_id, "name": shard.run_name, **fields(shard, "attempt", "ending")}
                for shard in executed
            ],
        },
    )


def _require_one(first: str | None, second: str | None, options: str, meaning: str) -> None:
    """Refuse neither and both of two options."""
    if (first is None) == (second is None):
        problem = "one of them is required" if first is None else "they are mutually exclusive"
        raise typer.BadParameter(f"{problem}. {meaning}.", param_hint=options)


def _labels(written: str | None) -> tuple[str, ...]:
    from osmosis_ai.config.execution import label_name

    found = dict.fromkeys(filter(None, (label.strip() for label in (written or "").split(","))))
    if written is not None and not found:
        raise typer.BadParameter("the list is empty.", param_hint="'--labels'")
    for label in found:
        try:
            label_name(label)
        except ValueError as error:
            raise typer.BadParameter(f"'{label}' {error}.", param_hint="'--labels'") from None
    if len(found) > _MOST_LABELS:
        raise typer.BadParameter(f"at most {_MOST_LABELS} labels are allowed.", param_hint="'--labels'")
    return tuple(found)


def _credential(file: str | None, variable: str | None) -> str:
    """Return the worker's token, which is never on the command line."""
    meaning = "--token-file reads the worker token from a file, --token-env from an environment variable"
    _require_one(file, variable, "'--token-file' and '--token-env'", meaning)
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
            hint="create one on the platform's machine: "
            "osmosis platform worker-token create --pool NAME --output FILE",
        )
    return found


def _read(path: Path) -> str:
    """Return the beginning of a token file; warn if every user of this machine can read it."""
    try:
        with path.open(encoding="ascii", errors="replace") as file:
            if is_read_by_all(os.fstat(file.fileno())):
                current().warn(
                    f"every user of this machine can read {path}, and execute runs with it: chmod 600 {path}"
                )
            return file.read(_LONGEST_CREDENTIAL + 2)
    except OSError as error:
        raise OsmosisError(f"{path} cannot be read: {error.strerror or error}.") from error
