"""`osmosis check` and `osmosis doctor`: check a workspace directory and its configs, without an account or a network.

A check runs no code except the import of the entrypoints, each in a child process and only if imports are allowed.
What cannot be checked on this machine is reported as unchecked. If you are logged in, the doctor asks the platform
which workspace the repository belongs to. A missing answer or a machine without a working sandbox is not an error.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from osmosis_ai.api.git_identity import identify_origin
from osmosis_ai.config.issues import closest, nearest
from osmosis_ai.errors import NotFoundError, OsmosisError
from osmosis_ai.files import expanded
from osmosis_ai.workspace import doctor
from osmosis_ai.workspace.git import read_origin, without_credentials
from osmosis_ai.workspace.layout import DATASET_EXTENSIONS, REQUIRED_DIRECTORIES

if TYPE_CHECKING:
    from osmosis_ai.api.models.auth import WorkspaceMembership
    from osmosis_ai.config.issues import Issue
    from osmosis_ai.sandbox import SandboxCapability
    from osmosis_ai.workspace.config_files import EvalConfig, TrainingConfig
    from osmosis_ai.workspace.layout import WorkspaceDirectory

    Config = EvalConfig | TrainingConfig

Tell = Callable[[str], None]
Severity = Literal["error", "warning"]
CheckName = Literal["config", "import", "dataset"]

IMPORT_TIMEOUT_S = 60.0
LOOKUP_TIMEOUT_S = 5.0
_PLACES = "configs are .toml files in configs/eval/, configs/training/ and configs/benchmark/; datasets are in data/"


@dataclass(frozen=True)
class Problem:
    """An error or warning.

    Attributes:
        check: ``config``, ``import`` or ``dataset``.
        file: relative to the workspace directory.
        line: in the file, from 1, if known for certain.
        key: the config key.
        suggestion: the likely intended value.
    """

    severity: Severity
    check: CheckName
    message: str
    file: str
    line: int | None = None
    key: str | None = None
    suggestion: str | None = None

    def text(self) -> str:
        """Return the problem as one line of a report."""
        place = f"{self.file}:{self.line}" if self.line is not None else self.file
        named = f"{self.key}: " if self.key else ""
        meant = f" (did you mean '{self.suggestion}'?)" if self.suggestion else ""
        return f"{place}: {named}{self.message}{meant}"

    def data(self) -> dict[str, Any]:
        """Return the problem as the JSON output shows it; unknown fields are left out."""
        known = {
            "severity": self.severity,
            "check": self.check,
            "file": self.file,
            "line": self.line,
            "key": self.key,
            "message": self.message,
            "suggestion": self.suggestion,
        }
        return {key: value for key, value in known.items() if value is not None}


@dataclass
class CheckReport:
    """What was checked, and the problems found.

    Attributes:
        configs, entrypoints, datasets: files that were checked, relative to the workspace directory.
        unchecked: what could not be checked on this machine, one sentence each.
    """

    workspace: WorkspaceDirectory
    configs: list[str] = field(default_factory=list)
    entrypoints: list[str] = field(default_factory=list)
    datasets: list[str] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    unchecked: list[str] = field(default_factory=list)

    @property
    def errors(self) -> list[Problem]:
        """The problems that make the check fail."""
        return [problem for problem in self.problems if problem.severity == "error"]

    @property
    def warnings(self) -> list[Problem]:
        """The problems that do not make the check fail."""
        return [problem for problem in self.problems if problem.severity == "warning"]

    def resource(self) -> dict[str, Any]:
        """Return the report as the JSON output shows it."""
        return {
            "workspace_directory": str(self.workspace.root),
            "checked": {
                "configs": self.configs,
                "entrypoints": self.entrypoints,
                "datasets": self.datasets,
            },
            "unchecked": self.unchecked,
            "errors": len(self.errors),
            "warnings": len(self.warnings),
            "problems": [problem.data() for problem in self.problems],
        }


@dataclass(frozen=True)
class CheckOptions:
    """How much is checked.

    Attributes:
        imports: whether entrypoints are imported, which runs their code.
        strict: whether rows that cannot be evaluated are errors.
        import_timeout_s: time limit of one import, in seconds.
    """

    imports: bool = True
    strict: bool = False
    import_timeout_s: float = IMPORT_TIMEOUT_S


def check_workspace(
    paths: Sequence[Path] = (),
    options: CheckOptions | None = None,
    *,
    start: Path | None = None,
    tell: Tell = lambda _stage: None,
) -> CheckReport:
    """Check configs, the code they run and the datasets they name.

    Args:
        paths: configs, dataset files, or directories that contain configs; all configs of the workspace if empty.
        start: a directory of the workspace (default: the current directory).
        tell: receives the name of each slow step.

    Raises:
        OsmosisError: there is no workspace, or nothing to check. Problems in existing files are in the report.
    """
    from osmosis_ai.workspace.layout import find_workspace

    there = next((path for path in paths if path.exists()), None)
    workspace = find_workspace(start or there, require_scaffold=False)
    check = _Check(CheckReport(workspace), options or CheckOptions(), tell)
    configs, datasets = _inputs(workspace, paths)
    for path in configs:
        check.config(path)
    for path in datasets:
        check.dataset(path)
    return check.report


class _Check:
    """One check; an entrypoint or dataset that several configs name is checked once."""

    def __init__(self, report: CheckReport, options: CheckOptions, tell: Tell) -> None:
        self.report = report
        self._workspace = report.workspace
        self._options = options
        self._tell = tell
        self._imported: set[tuple[Any, ...]] = set()

    def config(self, path: Path) -> None:
        """Check a config and what it names."""
        shown = self._shown(path)
        self._tell(f"Checking {shown}")
        self.report.configs.append(shown)
        try:
            config = self._load(path)
        except OsmosisError as error:
            self._add_config_error(shown, error)
            return
        if config is None:
            return
        self._add_doubts(config, shown)
        self._check_import(config, shown)
        self._find_dataset(config, shown)

    def dataset(self, path: Path) -> None:
        """Check all rows of a dataset file."""
        from osmosis_ai.datasets import validate_dataset

        shown = self._shown(path)
        if shown in self.report.datasets:
            return
        self._tell(f"Checking {shown}")
        self.report.datasets.append(shown)
        found = validate_dataset(path)
        for error in found.errors:
            line, said = _place(error)
            self._add("error", "dataset", said, shown, line=line)
        for warning in found.warnings:
            strict = self._options.strict and warning == found.unusable
            self._add("error" if strict else "warning", "dataset", warning, shown)

    def _load(self, path: Path) -> Config | None:
        """Return a config that names code and data of this workspace; None for any other kind of valid config."""
        from osmosis_ai.config.decisions import is_decide_file
        from osmosis_ai.workspace.config_files import (
            load_benchmark_config,
            load_decisions,
            load_eval_config,
            load_training_config,
        )

        if path.is_relative_to(self._workspace.benchmark_configs_dir):
            load_benchmark_config(path, self._workspace)
            return None
        if path.is_relative_to(self._workspace.eval_configs_dir):
            if is_decide_file(path):
                self._check_decided(path)
                load_decisions(path, self._workspace)
                return None
            return load_eval_config(path, self._workspace)
        return load_training_config(path, self._workspace)

    def _check_decided(self, path: Path) -> None:
        """Check that a decide file belongs to a config."""
        from osmosis_ai.config.decisions import decided_config, is_decide_file

        config = decided_config(path)
        if config.is_file():
            return
        others = (other.name for other in config.parent.glob("*.toml") if not is_decide_file(other))
        near = next(iter(nearest(config.name, others, most=1, cutoff=0.6)), None)
        message = f"there is no {config.name} beside it, so that only --rules finds it"
        self._add(
            "warning",
            "config",
            message,
            self._shown(path),
            suggestion=near and f"{near.removesuffix('.toml')}.decide.toml",
        )

    def _add_config_error(self, shown: str, error: OsmosisError) -> None:
        from osmosis_ai.config.issues import InvalidConfigError

        if isinstance(error, InvalidConfigError):
            self._add_issues("error", shown, error.issues)
            return
        headline = error.message.partition("\n")[0].rstrip(":.")
        said = f"{headline}; {error.hint}" if error.hint else headline
        self._add("error", "config", said, shown, line=error.details.get("line"))

    def _add_issues(self, severity: Severity, shown: str, issues: Iterable[Issue], *, note: str = "") -> None:
        for issue in issues:
            self._add(
                severity,
                "config",
                issue.message + note,
                shown,
                line=issue.line,
                key=issue.key,
                suggestion=issue.suggestion,
            )

    def _add_doubts(self, config: Config, shown: str) -> None:
        """Add this release's warnings about a config; those about built-in models and our model table are errors."""
        from osmosis_ai.config.execution import is_of_our_table

        for issue in config.doubts:
            if issue.key == "experiment.model_path" or is_of_our_table(issue, config.advanced):
                self._add_issues("error", shown, [issue])
            else:
                self._add_issues("warning", shown, [issue], note="; the platform is likely to refuse it")

    def _check_import(self, config: Config, shown: str) -> None:
        from osmosis_ai.config.sections import served_agent
        from osmosis_ai.services.rollout_preflight import import_entrypoint, served_elsewhere
        from osmosis_ai.workspace.config_files import rollout_directory

        experiment = config.experiment
        if served_agent(experiment.entrypoint) is not None:
            self._leave(served_elsewhere(experiment.entrypoint).problem)
            return
        entrypoint = f"rollouts/{experiment.rollout}/{experiment.entrypoint}"
        if experiment.branch or experiment.commit_sha:
            pinned = experiment.branch or experiment.commit_sha
            self._leave(f"{shown} takes {entrypoint} from {pinned}, which is not what was looked at here.")
            return
        key = (entrypoint, tuple(sorted(config.env.items())), config.secrets)
        if key in self._imported:
            return
        self._imported.add(key)
        if not self._options.imports:
            self._leave(f"{entrypoint} was not imported (--no-import).")
            return
        self._tell(f"Importing {entrypoint}")
        outcome = import_entrypoint(
            rollout_directory(self._workspace, experiment.rollout),
            experiment.entrypoint,
            env=config.env,
            secret_names=config.secrets,
            timeout_s=self._options.import_timeout_s,
        )
        if outcome.kind == "unknown":
            self._leave(outcome.problem)
            return
        if entrypoint not in self.report.entrypoints:
            self.report.entrypoints.append(entrypoint)
        if outcome.kind == "late":
            self._add("error", "import", outcome.problem, entrypoint)
        elif outcome.kind == "failed":
            self._add(
                "error",
                "import",
                f"{outcome.problem}; {outcome.hint}",
                outcome.file or entrypoint,
                line=outcome.line,
            )

    def _find_dataset(self, config: Config, shown: str) -> None:
        from osmosis_ai.workspace.layout import find_dataset_file, similar_dataset

        name = config.experiment.dataset
        try:
            found = find_dataset_file(self._workspace, name)
        except OsmosisError as error:
            self._add("error", "config", error.message, shown, key="experiment.dataset")
            return
        if found is not None:
            self.dataset(found)
            return
        near = similar_dataset(self._workspace, name)
        meant = f"; did you mean '{near}'?" if near else ""
        self._leave(
            f"{shown}: data/ has no dataset '{name}'; only a platform can tell whether it has one{meant}"
        )

    def _leave(self, sentence: str) -> None:
        if sentence not in self.report.unchecked:
            self.report.unchecked.append(sentence)

    def _add(
        self,
        severity: Severity,
        check: CheckName,
        message: str,
        file: str,
        *,
        line: int | None = None,
        key: str | None = None,
        suggestion: str | None = None,
    ) -> None:
        problem = Problem(severity, check, message, file, line, key, suggestion)
        if problem not in self.report.problems:
            self.report.problems.append(problem)

    def _shown(self, path: Path) -> str:
        root = self._workspace.root
        return path.relative_to(root).as_posix() if path.is_relative_to(root) else str(path)


def _inputs(workspace: WorkspaceDirectory, paths: Sequence[Path]) -> tuple[list[Path], list[Path]]:
    """Return the configs and dataset files that ``paths`` mean, without duplicates, and the configs' decide files.

    Raises:
        OsmosisError: a path does not exist or is neither, or there is nothing to check.
    """
    if not paths:
        configs = _configs_below(workspace, workspace.root)
        if not configs:
            raise NotFoundError(
                f"there is no config to check: {workspace.root} has no .toml file in configs/eval/ or "
                "configs/training/.",
                hint="make a rollout with its config: osmosis rollout init NAME",
            )
        return configs, []
    configs, datasets = [], []
    for path in paths:
        place = expanded(path).resolve()
        if place.is_dir():
            found = _configs_below(workspace, place)
            if not found:
                raise NotFoundError(f"there is no config in {path}.", hint=_PLACES)
            configs += found
        elif not place.exists():
            raise _not_there(workspace, path)
        elif place.suffix == ".toml":
            configs += [*_require_config(workspace, path, place), *_decided_about(workspace, place)]
        elif place.suffix[1:] in DATASET_EXTENSIONS:
            datasets.append(place)
        else:
            raise OsmosisError(f"{path} is neither a config nor a dataset.", hint=_PLACES)
    return list(dict.fromkeys(configs)), list(dict.fromkeys(datasets))


def _configs_below(workspace: WorkspaceDirectory, directory: Path) -> list[Path]:
    return [
        path
        for home in _homes(workspace)
        for path in sorted(home.rglob("*.toml"))
        if path.is_relative_to(directory)
    ]


def _decided_about(workspace: WorkspaceDirectory, config: Path) -> list[Path]:
    """Return the decide file next to an eval config. Without this check, its errors show only after the evaluation."""
    from osmosis_ai.config.decisions import decide_file, is_decide_file

    if is_decide_file(config) or not config.is_relative_to(workspace.eval_configs_dir.resolve()):
        return []
    decided = decide_file(config)
    return [decided] if decided.is_file() else []


def _require_config(workspace: WorkspaceDirectory, path: Path, place: Path) -> list[Path]:
    if not any(place.is_relative_to(home) for home in _homes(workspace)):
        raise OsmosisError(f"{path} is not a config of {workspace.root}.", hint=_PLACES)
    return [place]


def _not_there(workspace: WorkspaceDirectory, path: Path) -> NotFoundError:
    found = _configs_below(workspace, workspace.root)
    by_name = {config.name: config for config in reversed(found)}
    shown = {config.relative_to(workspace.root).as_posix(): config for config in found}
    near = shown.get(closest(path.as_posix(), shown) or "") or by_name.get(closest(path.name, by_name) or "")
    meant = f"did you mean {near.relative_to(workspace.root)}?" if near else _PLACES
    return NotFoundError(f"there is no file or directory {path}.", hint=meant)


def _homes(workspace: WorkspaceDirectory) -> tuple[Path, ...]:
    homes = (workspace.eval_configs_dir, workspace.training_configs_dir, workspace.benchmark_configs_dir)
    return tuple(home.resolve() for home in homes)


def _place(error: str) -> tuple[int | None, str]:
    """Split a dataset error into its line number, if it starts with one, and the rest."""
    match = re.match(r"line ([0-9]+)(?:: |, (?=column ))", error)
    return (int(match[1]), error[match.end() :]) if match else (None, error)


def github_annotations(problems: Iterable[Problem]) -> list[str]:
    """Return a GitHub Actions workflow command for each problem, escaped so that no text can start another command.

    https://docs.github.com/actions/reference/workflows-and-actions/workflow-commands
    """
    return [_command(problem) for problem in problems]


def _command(problem: Problem) -> str:
    places = {"file": problem.file, "line": problem.line, "title": f"osmosis check: {problem.check}"}
    properties = ",".join(
        f"{name}={_property(str(value))}" for name, value in places.items() if value is not None
    )
    meant = f" (did you mean '{problem.suggestion}'?)" if problem.suggestion else ""
    named = f"{problem.key}: " if problem.key else ""
    return f"::{problem.severity} {properties}::{_data(f'{named}{problem.message}{meant}')}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


@dataclass(frozen=True)
class Origin:
    """A repository's `origin`, without credentials.

    Args:
        identity: the platform's name for the repository.
        warning: why there is no identity.
    """

    remote_url: str | None = None
    identity: str | None = None
    warning: str | None = None


@dataclass(frozen=True)
class Checkup:
    """The result of the doctor.

    Args:
        report: the directories and guides.
        sandbox: what this machine can use to sandbox rollouts.
        limits: how a platform on this machine would limit the resources of rollouts, as text.
        workspace: the repository's workspace on the platform you are logged in to.
    """

    report: doctor.DoctorReport
    origin: Origin
    sandbox: SandboxCapability
    limits: str
    workspace: WorkspaceMembership | None = None

    def resource(self) -> dict[str, Any]:
        """Return the checkup as the JSON output shows it."""
        git: dict[str, Any] = {"identity": self.origin.identity, "remote_url": self.origin.remote_url}
        if self.origin.warning is not None:
            git["warning"] = self.origin.warning
        linked = self.workspace
        return {
            "workspace_directory": str(self.report.root),
            "git": git,
            "workspace": linked and {"id": linked.id, "name": linked.name, "role": linked.role},
            "required_paths": [*REQUIRED_DIRECTORIES, *doctor.AGENT_GUIDES],
            "missing": list(self.report.missing),
            "valid": self.report.valid,
            "fixed": list(self.report.fixed),
            "gitignore": {"missing": list(self.report.unignored), "added": list(self.report.ignored)},
            "tracked_env_files": list(self.report.tracked_env_files),
            "sandbox": {
                "works": self.sandbox.works,
                "problem": self.sandbox.problem,
                "remedy": self.sandbox.remedy,
                "limits": self.limits,
            },
        }


def examine(path: Path | None = None, *, fix: bool = False) -> Checkup:
    """Check the workspace directory that contains ``path``.

    Args:
        path: a directory of the work tree (default: the current directory).
        fix: create what is missing.

    Raises:
        WorkspaceRequiredError: outside a Git work tree.
        ConflictError: an existing file prevents the fix.
        OsmosisError: directories are missing and ``fix`` is not set; its details are the resource.
    """
    from osmosis_ai import sandbox

    report = doctor.fix(path) if fix else doctor.check(path)
    origin = _origin_of(report.root)
    linked = _linked_workspace(origin.identity) if origin.identity else None
    checkup = Checkup(report, origin, sandbox.check_sandbox(), sandbox.look_at_control().words, linked)
    if not report.valid:
        raise OsmosisError(
            f"{report.root} is not a complete workspace directory. Missing:\n"
            + "\n".join(f"  - {name}/" for name in report.missing_directories)
            + "\nRun `osmosis doctor --fix` to create what is missing.",
            details=checkup.resource(),
        )
    return checkup


def _origin_of(root: Path) -> Origin:
    url = read_origin(root)
    if url is None:
        return Origin(warning="there is no remote `origin`; only runs on a platform need one")
    try:
        git = identify_origin(url, base=root)
    except OsmosisError as error:
        return Origin(without_credentials(url), warning=error.message)
    return Origin(git.display_url, git.identity)


def _linked_workspace(identity: str) -> WorkspaceMembership | None:
    """Return the workspace of a repository; None without a login or if the platform does not answer."""
    from osmosis_ai.api.credentials import require_credentials

    try:
        credentials = require_credentials()
        from osmosis_ai.services.context import connect

        with connect(credentials, git_identity=identity, timeout_s=LOOKUP_TIMEOUT_S) as client:
            return client.verify().workspace
    except OsmosisError:
        return None
