"""Load config files, which are then valid as far as this can be checked without a network.

Checks run in this order: the file's location, that it can be read, that it is TOML; then all remaining issues are
reported at once. A config keeps the file's content unchanged: :meth:`EvalConfig.payload` sends exactly that.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from osmosis_ai.config.checks import (
    EVAL,
    TRAINING,
    ConfigKind,
    document_issues,
    in_file_order,
    read_settings,
    settings_issues,
)
from osmosis_ai.config.decisions import (
    Decisions,
    decide_file,
    decided_config,
    is_decide_file,
    parse_decisions,
)
from osmosis_ai.config.issues import InvalidConfigError, Issue, closest, without_repeats
from osmosis_ai.config.sections import (
    EvaluationSettings,
    Experiment,
    entrypoint_problem,
    rollout_name_problem,
    served_agent,
)
from osmosis_ai.config.toml_text import parse_toml
from osmosis_ai.errors import OsmosisError
from osmosis_ai.files import expanded
from osmosis_ai.workspace.layout import WorkspaceDirectory, find_workspace

if TYPE_CHECKING:
    from osmosis_ai.config.benchmark import BenchmarkConfig
    from osmosis_ai.config.training import TrainingSettings

_MOST_NAMED = 5


@dataclass(frozen=True, kw_only=True)
class _Config:
    kind: ClassVar[ConfigKind]

    path: Path
    experiment: Experiment
    env: Mapping[str, str]
    secrets: tuple[str, ...]
    advanced: Mapping[str, Any]
    written: Mapping[str, Mapping[str, Any]] = field(repr=False)
    text: str = field(repr=False)
    doubts: tuple[Issue, ...] = ()

    def payload(self) -> dict[str, Any]:
        """Return the body of a submit: the file's content without empty sections."""
        written = {part: self.written.get(section) for part, section in self.kind.parts.items()}
        body: dict[str, Any] = {part: dict(section) for part, section in written.items() if section}
        if self.secrets:
            body["secrets"] = {"required": list(self.secrets)}
        return body


class EvalConfig(_Config):
    """A file of `configs/eval/`."""

    kind = EVAL

    @property
    def evaluation(self) -> EvaluationSettings:
        """The settings of the evaluation."""
        return EvaluationSettings(**self.written.get("evaluation", {}))


class TrainingConfig(_Config):
    """A file of `configs/training/`; fields as in :class:`EvalConfig`."""

    kind = TRAINING

    @property
    def settings(self) -> TrainingSettings:
        """The settings for this release's trainer."""
        return read_settings(self.written)


ConfigT = TypeVar("ConfigT", bound=_Config)


def load_eval_config(path: Path, workspace: WorkspaceDirectory) -> EvalConfig:
    """Load and check a config of `configs/eval/`."""
    return _load(path, workspace, EvalConfig)


def load_training_config(path: Path, workspace: WorkspaceDirectory) -> TrainingConfig:
    """Load and check a config of `configs/training/`."""
    return _load(path, workspace, TrainingConfig)


def load_benchmark_config(path: Path, workspace: WorkspaceDirectory) -> BenchmarkConfig:
    """Load and check a config of `configs/benchmark/`."""
    from osmosis_ai.config.benchmark import BENCHMARK, parse_benchmark_config

    _, shown, text = _locate_and_read(path, workspace, BENCHMARK)
    return parse_benchmark_config(parse_toml(text, shown), shown, text)


def load_decisions(path: Path, workspace: WorkspaceDirectory | None = None) -> Decisions:
    """Load and check a decide file."""
    shown = str(path)
    if workspace is not None and path.is_relative_to(workspace.root):
        shown = path.relative_to(workspace.root).as_posix()
    if not path.is_file():
        raise OsmosisError(f"there is no file of rules {shown}.")
    return parse_decisions(_read_text(path, shown), shown)


def decisions_about(config: Path, workspace: WorkspaceDirectory | None = None) -> Decisions:
    """Load the decide file next to a config; the defaults if there is none."""
    path = decide_file(config)
    return load_decisions(path, workspace) if path.exists() else Decisions()


def decisions_of_run(config: str | None, workspace: WorkspaceDirectory) -> Decisions:
    """Load the decide file of the config that a run names."""
    try:
        path = (workspace.root / (config or "")).resolve()
        if config is None or not path.is_relative_to(workspace.eval_configs_dir.resolve()):
            return Decisions()
        return decisions_about(path, workspace)
    except (OSError, ValueError):  # not a valid file name
        return Decisions()


def decisions_around(config: str | None, directory: Path) -> tuple[Decisions | None, Sequence[str]]:
    """Return the decisions of the workspace around a run's directory, and the errors in their file."""
    # Not searched with Git, which would start a process for every page.
    if len(directory.parts) < 4 or directory.parent != WorkspaceDirectory(directory.parents[2]).evals_dir:
        return None, ()
    try:
        return decisions_of_run(config, WorkspaceDirectory(directory.parents[2])), ()
    except OsmosisError as error:
        return None, (error.with_hint,)


class RolloutPathError(OsmosisError):
    """The rollout or entrypoint that a config names cannot be used."""

    def __init__(
        self, key: str, problem: str, *, suggestion: str | None = None, hint: str | None = None
    ) -> None:
        did_you_mean = f" (did you mean '{suggestion}'?)" if suggestion else ""
        super().__init__(problem + did_you_mean, details={"key": key}, hint=hint)
        self.issue = Issue(key, problem, suggestion=suggestion)


def rollout_directory(workspace: WorkspaceDirectory, rollout: str) -> Path:
    """Return the directory of ``rollout``."""
    key = "experiment.rollout"
    if problem := rollout_name_problem(rollout):
        raise RolloutPathError(key, problem)
    directory = workspace.rollouts_dir / rollout
    if not directory.is_dir():
        names = [path.name for path in workspace.rollouts_dir.glob("*") if path.is_dir()]
        raise RolloutPathError(
            key,
            f"there is no directory rollouts/{rollout}/",
            suggestion=closest(rollout, names),
            hint="`osmosis rollout init NAME` writes a new rollout",
        )
    if not directory.resolve().is_relative_to(workspace.rollouts_dir.resolve()):
        raise RolloutPathError(key, f"rollouts/{rollout} is a link that leads out of rollouts/")
    return directory


def entrypoint_path(workspace: WorkspaceDirectory, rollout: str, entrypoint: str) -> Path:
    """Return the entrypoint script of ``rollout``."""
    key = "experiment.entrypoint"
    directory = rollout_directory(workspace, rollout)
    if problem := entrypoint_problem(entrypoint):
        raise RolloutPathError(key, problem)
    path = directory / entrypoint
    if not path.resolve().is_relative_to(directory.resolve()):
        raise RolloutPathError(
            key, f"rollouts/{rollout}/{entrypoint} is a link that leads out of rollouts/{rollout}/"
        )
    if not path.is_file():
        scripts = [found.name for found in directory.glob("*.py")]
        raise RolloutPathError(
            key, f"there is no file rollouts/{rollout}/{entrypoint}", suggestion=closest(entrypoint, scripts)
        )
    return path


def _load(path: Path, workspace: WorkspaceDirectory, config: type[ConfigT]) -> ConfigT:
    found, shown, text = _locate_and_read(path, workspace, config.kind)
    document = parse_toml(text, shown)
    issues = document_issues(document, config.kind)
    keys = {issue.key for issue in issues}
    if keys.isdisjoint(("experiment", "experiment.rollout", "experiment.entrypoint")):
        issues += _code_issues(document["experiment"], workspace)
    warnings = without_repeats(issues, settings_issues(document, config.kind))
    if issues:
        raise InvalidConfigError(config.kind.name, shown, in_file_order([*issues, *warnings], text))
    return config(
        path=found,
        experiment=Experiment(**document["experiment"]),
        env=document.get("env", {}),
        secrets=tuple(document.get("secrets", {}).get("required", ())),
        advanced=document.get("advanced", {}),
        written=document,
        text=text,
        doubts=tuple(in_file_order(warnings, text)) if warnings else (),
    )


def _locate_and_read(path: Path, workspace: WorkspaceDirectory, kind: ConfigKind) -> tuple[Path, str, str]:
    """Return the path of a config, its path for errors, and its text."""
    found = _locate(path, workspace, kind)
    shown = found.relative_to(workspace.root).as_posix()
    return found, shown, _read_text(found, shown)


def _code_issues(experiment: Mapping[str, Any], workspace: WorkspaceDirectory) -> Iterator[Issue]:
    """Check that the code exists, unless the config takes it from another commit."""
    pinned = "branch" in experiment or "commit_sha" in experiment
    if not pinned and served_agent(experiment["entrypoint"]) is None:
        try:
            entrypoint_path(workspace, experiment["rollout"], experiment["entrypoint"])
        except RolloutPathError as error:
            yield error.issue


def require_config_file(path: Path, kind: ConfigKind) -> None:
    """Check that a config exists, before a login is required."""
    try:
        workspace = find_workspace(None, require_scaffold=False)
    except OsmosisError:
        return
    _locate(path, workspace, kind)


def _locate(path: Path, workspace: WorkspaceDirectory, kind: ConfigKind) -> Path:
    candidates = [workspace.root / expanded(path), expanded(path).absolute()]
    found = next((candidate for candidate in candidates if candidate.exists()), None)
    expected = workspace.root / kind.directory
    if found is None:
        names = sorted(entry.name for entry in expected.glob("*.toml") if not is_decide_file(entry))
        more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
        hint = f"{kind.directory}/ has {', '.join(names[:_MOST_NAMED]) or 'no config yet'}{more}"
        if suggestion := closest(path.name, names):
            hint = f"did you mean {kind.directory}/{suggestion}?"
        raise OsmosisError(f"Config file not found: {path}", hint=hint)
    if found.suffix != ".toml":
        raise OsmosisError(f"A config is a .toml file in {kind.directory}/; {path} is not one.")
    if is_decide_file(found):
        raise OsmosisError(
            f"{path} contains rules for runs; it is not {kind.article.lower()} config.",
            hint=f"name the config that the rules are for: {decided_config(found).name}",
        )
    resolved = found.resolve()
    if not resolved.is_relative_to(expected.resolve()):
        target, named = expected / found.name, f"{kind.directory}/{found.name}"
        other = target.is_file() and target.resolve() != resolved
        raise OsmosisError(
            f"{kind.article} config must be inside {kind.directory}/ of the workspace directory.\n"
            f"  found:    {resolved}\n"
            f"  expected: {target}",
            hint=f"did you mean {named}?" if other else f"move it there, and name it as {named}",
        )
    return workspace.root / kind.directory / resolved.relative_to(expected.resolve())


def _read_text(path: Path, shown: str) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise OsmosisError(
            f"Cannot read config file {shown}: it is not UTF-8 (byte {error.start})."
        ) from None
    except OSError as error:
        raise OsmosisError(f"Cannot read config file {shown}: {error.strerror}.") from None
