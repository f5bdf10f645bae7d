"""`osmosis check` and `osmosis doctor`: check a workspace directory and its configs, without an account or a network.

A check runs no code except the import of the entrypoints, each in a child process and only if imports are allowed.
Parts that cannot be checked on this machine are reported as unchecked. If you are logged in, the doctor asks the platform
which workspace the repository belongs to. A missing answer or a machine without a working sandbox is not an error.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from osmosis_ai.api.git_identity import identify_origin
from osmosis_ai.config.decisions import decide_file, decided_config, is_decide_file
from osmosis_ai.config.execution import is_of_our_table
from osmosis_ai.config.issues import InvalidConfigError, Issue, closest, nearest
from osmosis_ai.config.sections import served_agent
from osmosis_ai.datasets import validate_dataset
from osmosis_ai.errors import NotFoundError, OsmosisError
from osmosis_ai.files import expanded
from osmosis_ai.sandbox import control_groups, isolation
from osmosis_ai.services.rollout_preflight import import_entrypoint, remote_agent
from osmosis_ai.workspace import doctor
from osmosis_ai.workspace.config_files import (
    EvalConfig,
    TrainingConfig,
    load_benchmark_config,
    load_decisions,
    load_eval_config,
    load_training_config,
    rollout_directory,
)
from osmosis_ai.workspace.git import read_origin, without_credentials
from osmosis_ai.workspace.layout import (
    DATASET_EXTENSIONS,
    REQUIRED_DIRECTORIES,
    WorkspaceDirectory,
    find_dataset_file,
    find_workspace,
    similar_dataset,
)

Config = EvalConfig | TrainingConfig
Severity = Literal["error", "warning"]
CheckName = Literal["config", "import", "dataset"]

LOOKUP_TIMEOUT_S = 5.0
_PLACES = "configs are .toml files in configs/eval/, configs/training/ and configs/benchmark/; datasets are in data/"


@dataclass(frozen=True)
class Problem:
    """An error or warning about a ``file``, relative to the workspace directory, and a ``line`` from 1."""

    severity: Severity
    check: CheckName
    file: str
    message: str
    line: int | None = None
    key: str | None = None
    suggestion: str | None = None

    def text(self) -> str:
        """Return the problem as one line of a report."""
        return f"{self.file}{'' if self.line is None else f':{self.line}'}: {self._sentence()}"

    def github_annotation(self) -> str:
        """Return a GitHub Actions workflow command, escaped so that no text can start another command.

        https://docs.github.com/actions/reference/workflows-and-actions/workflow-commands
        """
        places = {"file": self.file, "line": self.line, "title": f"osmosis check: {self.check}"}
        properties = ",".join(
            f"{name}={_escaped(str(value)).replace(':', '%3A').replace(',', '%2C')}"
            for name, value in places.items()
            if value is not None
        )
        return f"::{self.severity} {properties}::{_escaped(self._sentence())}"

    def _sentence(self) -> str:
        named = f"{self.key}: " if self.key else ""
        meant = f" (did you mean '{self.suggestion}'?)" if self.suggestion else ""
        return f"{named}{self.message}{meant}"


def _escaped(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


@dataclass
class CheckReport:
    """What was checked (files relative to the workspace directory), the problems found, and what was not checked."""

    workspace: WorkspaceDirectory
    configs: list[str] = field(default_factory=list)
    entrypoints: list[str] = field(default_factory=list)
    datasets: list[str] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    unchecked: list[str] = field(default_factory=list)

    @property
    def errors(self) -> list[Problem]:
        return [problem for problem in self.problems if problem.severity == "error"]

    @property
    def warnings(self) -> list[Problem]:
        return [problem for problem in self.problems if problem.severity == "warning"]

    def resource(self) -> dict[str, Any]:
        """Return the report as the JSON output shows it; unknown facts about a problem are left out."""
        return {
            "workspace_directory": str(self.workspace.root),
            "checked": {"configs": self.configs, "entrypoints": self.entrypoints, "datasets": self.datasets},
            "unchecked": self.unchecked,
            "errors": len(self.errors),
            "warnings": len(self.warnings),
            "problems": [
                {name: value for name, value in asdict(problem).items() if value is not None}
                for problem in self.problems
            ],
        }


def check_workspace(
    paths: Sequence[Path], *, imports: bool, strict: bool, import_timeout_s: float
) -> CheckReport:
    """Check configs, the code they run and the datasets they name. Problems in existing files are in the report.

    Args:
        paths: configs, dataset files, or directories that contain configs; all configs of the workspace if empty.
        imports: whether entrypoints are imported, which runs their code.
        strict: whether rows that cannot be evaluated are errors.
        import_timeout_s: time limit of one import, in seconds.
    """
    there = next((path for path in paths if path.exists()), None)
    workspace = find_workspace(there, require_scaffold=False)
    check = _Check(CheckReport(workspace), imports, strict, import_timeout_s)
    configs, datasets = _inputs(workspace, paths)
    for path in configs:
        check.config(path)
    for path in datasets:
        check.dataset(path)
    return check.report


@dataclass
class _Check:
    """One check; an entrypoint or dataset that several configs name is checked once."""

    report: CheckReport
    imports: bool
    strict: bool
    import_timeout_s: float
    imported: set[tuple[Any, ...]] = field(default_factory=set)

    @property
    def workspace(self) -> WorkspaceDirectory:
        return self.report.workspace

    def config(self, path: Path) -> None:
        """Check a config and what it names."""
        shown = self._shown(path)
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
        shown = self._shown(path)
        if shown in self.report.datasets:
            return
        self.report.datasets.append(shown)
        found = validate_dataset(path)
        for error in found.errors:
            line, said = _place(error)
            self._add(Problem("error", "dataset", shown, said, line))
        for warning in found.warnings:
            strict = self.strict and warning == found.unusable
            self._add(Problem("error" if strict else "warning", "dataset", shown, warning))

    def _load(self, path: Path) -> Config | None:
        """Return a config that names code and data of this workspace; None for any other kind of valid config."""
        if path.is_relative_to(self.workspace.benchmark_configs_dir):
            load_benchmark_config(path, self.workspace)
            return None
        if path.is_relative_to(self.workspace.eval_configs_dir):
            if is_decide_file(path):
                self._check_decided(path)
                load_decisions(path, self.workspace)
                return None
            return load_eval_config(path, self.workspace)
        return load_training_config(path, self.workspace)

    def _check_decided(self, path: Path) -> None:
        """Check that a decide file belongs to a config."""
        config = decided_config(path)
        if config.is_file():
            return
        others = (other.name for other in config.parent.glob("*.toml") if not is_decide_file(other))
        near = next(iter(nearest(config.name, others, most=1, cutoff=0.6)), None)
        suggestion = near and f"{near.removesuffix('.toml')}.decide.toml"
        message = f"there is no {config.name} next to it, so only --rules uses it"
        self._add(Problem("warning", "config", self._shown(path), message, suggestion=suggestion))

    def _add_config_error(self, shown: str, error: OsmosisError) -> None:
        if isinstance(error, InvalidConfigError):
            self._add_issues("error", shown, error.issues)
            return
        headline = error.message.partition("\n")[0].rstrip(":.")
        said = f"{headline}; {error.hint}" if error.hint else headline
        self._add(Problem("error", "config", shown, said, error.details.get("line")))

    def _add_issues(self, severity: Severity, shown: str, issues: Iterable[Issue], *, note: str = "") -> None:
        for issue in issues:
            message = issue.message + note
            self._add(Problem(severity, "config", shown, message, issue.line, issue.key, issue.suggestion))

    def _add_doubts(self, config: Config, shown: str) -> None:
        """Add this release's warnings about a config; those about built-in models and our model table are errors."""
        for issue in config.doubts:
            if issue.key == "experiment.model_path" or is_of_our_table(issue, config.advanced):
                self._add_issues("error", shown, [issue])
            else:
                self._add_issues("warning", shown, [issue], note="; the platform is likely to refuse it")

    def _check_import(self, config: Config, shown: str) -> None:
        experiment = config.experiment
        if served_agent(experiment.entrypoint) is not None:
            self._leave(remote_agent(experiment.entrypoint).problem)
            return
        entrypoint = f"rollouts/{experiment.rollout}/{experiment.entrypoint}"
        if experiment.branch or experiment.commit_sha:
            pinned = experiment.branch or experiment.commit_sha
            self._leave(f"{shown} takes {entrypoint} from {pinned}, which is not checked here.")
            return
        key = (entrypoint, tuple(sorted(config.env.items())), config.secrets)
        if key in self.imported:
            return
        self.imported.add(key)
        if not self.imports:
            self._leave(f"{entrypoint} was not imported (--no-import).")
            return
        outcome = import_entrypoint(
            rollout_directory(self.workspace, experiment.rollout),
            experiment.entrypoint,
            env=config.env,
            secret_names=config.secrets,
            timeout_s=self.import_timeout_s,
        )
        if outcome.kind == "unknown":
            self._leave(outcome.problem)
            return
        if entrypoint not in self.report.entrypoints:
            self.report.entrypoints.append(entrypoint)
        if outcome.kind == "late":
            self._add(Problem("error", "import", entrypoint, outcome.problem))
        elif outcome.kind == "failed":
            said = f"{outcome.problem}; {outcome.hint}"
            self._add(Problem("error", "import", outcome.file or entrypoint, said, outcome.line))

    def _find_dataset(self, config: Config, shown: str) -> None:
        name = config.experiment.dataset
        try:
            found = find_dataset_file(self.workspace, name)
        except OsmosisError as error:
            self._add(Problem("error", "config", shown, error.message, key="experiment.dataset"))
            return
        if found is not None:
            self.dataset(found)
            return
        near = similar_dataset(self.workspace, name)
        meant = f"; did you mean '{near}'?" if near else ""
        self._leave(f"{shown}: data/ has no dataset '{name}'; the platform may have one{meant}")

    def _leave(self, sentence: str) -> None:
        if sentence not in self.report.unchecked:
            self.report.unchecked.append(sentence)

    def _add(self, problem: Problem) -> None:
        if problem not in self.report.problems:
            self.report.problems.append(problem)

    def _shown(self, path: Path) -> str:
        root = self.workspace.root
        return path.relative_to(root).as_posix() if path.is_relative_to(root) else str(path)


def _inputs(workspace: WorkspaceDirectory, paths: Sequence[Path]) -> tuple[list[Path], list[Path]]:
    """Return the configs and dataset files that ``paths`` mean, without duplicates, and the configs' decide files."""
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
            if not any(place.is_relative_to(home) for home in _homes(workspace)):
                raise OsmosisError(f"{path} is not a config of {workspace.root}.", hint=_PLACES)
            configs += [place, *_decided_about(workspace, place)]
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
    if is_decide_file(config) or not config.is_relative_to(workspace.eval_configs_dir.resolve()):
        return []
    decided = decide_file(config)
    return [decided] if decided.is_file() else []


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


def examine(path: Path | None = None, *, fix: bool = False) -> dict[str, Any]:
    """Check the workspace directory that contains ``path``, and return the result as the JSON output shows it.

    With ``fix``, what is missing is created. Otherwise missing directories are an error, whose details are the result.
    """
    report = doctor.fix(path) if fix else doctor.check(path)
    git = git_facts(report.root)
    capability = isolation.check_sandbox()
    facts = {
        "workspace_directory": str(report.root),
        "git": git,
        "workspace": _linked_workspace(git["identity"]) if git["identity"] else None,
        "required_paths": [*REQUIRED_DIRECTORIES, *doctor.AGENT_GUIDES],
        "missing": list(report.missing),
        "valid": report.valid,
        "fixed": list(report.fixed),
        "gitignore": {"missing": list(report.unignored), "added": list(report.ignored)},
        "tracked_env_files": list(report.tracked_env_files),
        "sandbox": {
            "works": capability.works,
            "problem": capability.problem,
            "remedy": capability.remedy,
            "limits": control_groups.look_at_control().words,
        },
    }
    if not report.valid:
        raise OsmosisError(
            f"{report.root} is not a complete workspace directory. Missing:\n"
            + "\n".join(f"  - {name}/" for name in report.missing_directories)
            + "\nRun `osmosis doctor --fix` to create what is missing.",
            details=facts,
        )
    return facts


def git_facts(root: Path) -> dict[str, Any]:
    """Return the identity and the address of `origin`, without credentials, or why there is no identity."""
    url = read_origin(root)
    if url is None:
        warning = "there is no remote `origin`; only runs on a platform need one"
        return {"identity": None, "remote_url": None, "warning": warning}
    try:
        git = identify_origin(url, base=root)
    except OsmosisError as error:
        return {"identity": None, "remote_url": without_credentials(url), "warning": error.message}
    return {"identity": git.identity, "remote_url": git.display_url}


def _linked_workspace(identity: str) -> dict[str, Any] | None:
    """Return the workspace of a repository; None without a login or if the platform does not answer."""
    # Only this part of a checkup needs HTTP.
    from osmosis_ai.api.credentials import require_credentials
    from osmosis_ai.services.context import connect

    try:
        with connect(require_credentials(), git_identity=identity, timeout_s=LOOKUP_TIMEOUT_S) as client:
            workspace = client.verify().workspace
            return None if workspace is None else workspace.model_dump()
    except OsmosisError:
        return None
