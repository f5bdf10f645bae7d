"""Load config files. A loaded config is valid as far as this can be checked without a network.

Checks run in this order: the file's location, that it can be read, that it is TOML; then all remaining issues are
reported at once. A config keeps the file's content unchanged: :meth:`EvalConfig.payload` sends exactly that.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

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
from osmosis_ai.config.sections import EvaluationSettings, Experiment, served_agent
from osmosis_ai.config.toml_text import parse_toml
from osmosis_ai.errors import OsmosisError
from osmosis_ai.files import expanded
from osmosis_ai.workspace.layout import WorkspaceDirectory, find_workspace
from osmosis_ai.workspace.rollout_paths import RolloutPathError, entrypoint_file, rollout_directory

if TYPE_CHECKING:
    from osmosis_ai.config.benchmark import BenchmarkConfig
    from osmosis_ai.config.training import TrainingSettings

_NAMED = 5
"""The maximum number of a directory's configs that an error names."""

__all__ = [
    "Decisions",
    "EvalConfig",
    "EvaluationSettings",
    "Experiment",
    "InvalidConfigError",
    "TrainingConfig",
    "decisions_about",
    "entrypoint_path",
    "load_benchmark_config",
    "load_decisions",
    "load_eval_config",
    "load_training_config",
    "rollout_directory",
]


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
        body = {
            part: dict(self.written[section])
            for part, section in self.kind.parts.items()
            if self.written.get(section)
        }
        if self.secrets:
            body["secrets"] = {"required": list(self.secrets)}
        return body


@dataclass(frozen=True, kw_only=True)
class EvalConfig(_Config):
    """A file of `configs/eval/`."""

    kind: ClassVar[ConfigKind] = EVAL

    evaluation: EvaluationSettings


@dataclass(frozen=True, kw_only=True)
class TrainingConfig(_Config):
    """A file of `configs/training/`; fields as in :class:`EvalConfig`."""

    kind: ClassVar[ConfigKind] = TRAINING

    @property
    def settings(self) -> TrainingSettings:
        """The settings for this release's trainer."""
        return read_settings(self.written)


def load_eval_config(path: Path, workspace: WorkspaceDirectory) -> EvalConfig:
    """Load and check a config of `configs/eval/`."""
    document, known = _read(path, workspace, EVAL)
    return EvalConfig(**known, evaluation=EvaluationSettings(**document.get("evaluation", {})))


def load_training_config(path: Path, workspace: WorkspaceDirectory) -> TrainingConfig:
    """Load and check a config of `configs/training/`."""
    _, known = _read(path, workspace, TRAINING)
    return TrainingConfig(**known)


def load_benchmark_config(path: Path, workspace: WorkspaceDirectory) -> BenchmarkConfig:
    """Load and check a config of `configs/benchmark/`."""
    from osmosis_ai.config.benchmark import BENCHMARK, parse_benchmark_config

    found = _locate(path, workspace, BENCHMARK)
    shown = found.relative_to(workspace.root).as_posix()
    text = _read_text(found, shown)
    return parse_benchmark_config(parse_toml(text, shown), shown, text)


def load_decisions(path: Path, workspace: WorkspaceDirectory | None = None) -> Decisions:
    """Load and check a decide file."""
    inside = workspace is not None and path.is_relative_to(workspace.root)
    shown = path.relative_to(workspace.root).as_posix() if workspace and inside else str(path)
    if not path.is_file():
        raise OsmosisError(f"there is no file of rules {shown}.")
    return parse_decisions(_read_text(path, shown), shown)


def decisions_about(config: Path, workspace: WorkspaceDirectory | None = None) -> Decisions:
    """Load the decide file next to a config; the defaults if there is none."""
    beside = decide_file(config)
    return load_decisions(beside, workspace) if beside.exists() else Decisions.none()


def decisions_of_run(config: str | None, workspace: WorkspaceDirectory) -> Decisions:
    """Load the decide file of the config that a run names."""
    try:
        beside = (workspace.root / (config or "")).resolve()
        if config is None or not beside.is_relative_to(workspace.eval_configs_dir.resolve()):
            return Decisions.none()
        return decisions_about(beside, workspace)
    except (OSError, ValueError):  # not a valid file name
        return Decisions.none()


def decisions_around(config: str | None, directory: Path) -> tuple[Decisions | None, Sequence[str]]:
    """Return the decisions of the workspace around a run's directory, and the errors in their file."""
    if len(directory.parts) < 4:
        return None, ()
    # Not searched with Git, which would start a process for every page.
    workspace = WorkspaceDirectory(directory.parents[2])
    if directory.parent != workspace.evals_dir:
        return None, ()
    try:
        return decisions_of_run(config, workspace), ()
    except OsmosisError as error:
        return None, (error.with_hint,)


def entrypoint_path(workspace: WorkspaceDirectory, experiment: Experiment) -> Path:
    """Return the entrypoint script of ``experiment``'s rollout."""
    return entrypoint_file(workspace, experiment.rollout, experiment.entrypoint)


def _read(
    path: Path, workspace: WorkspaceDirectory, kind: ConfigKind
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the sections of a config, and the fields common to both kinds."""
    found = _locate(path, workspace, kind)
    shown = found.relative_to(workspace.root).as_posix()
    text = _read_text(found, shown)
    document = parse_toml(text, shown)
    issues = document_issues(document, kind)
    if not any(
        issue.key in ("experiment", "experiment.rollout", "experiment.entrypoint") for issue in issues
    ):
        issues += _code_issues(document["experiment"], workspace)
    doubts = without_repeats(issues, settings_issues(document, kind))
    if issues:
        raise InvalidConfigError(kind.name, shown, in_file_order([*issues, *doubts], text))
    return document, {
        "path": found,
        "experiment": Experiment(**document["experiment"]),
        "env": document.get("env", {}),
        "secrets": tuple(document.get("secrets", {}).get("required", ())),
        "advanced": document.get("advanced", {}),
        "written": document,
        "text": text,
        "doubts": tuple(in_file_order(doubts, text)) if doubts else (),
    }


def _code_issues(experiment: Mapping[str, Any], workspace: WorkspaceDirectory) -> Iterator[Issue]:
    """Check that the code exists, unless the config takes it from another commit."""
    if (
        "branch" in experiment
        or "commit_sha" in experiment
        or served_agent(experiment["entrypoint"]) is not None
    ):
        return
    try:
        entrypoint_file(workspace, experiment["rollout"], experiment["entrypoint"])
    except RolloutPathError as error:
        yield Issue(error.key, error.problem, suggestion=error.suggestion)


def require_config_file(path: Path, kind: ConfigKind) -> None:
    """Check that a config exists, before a login is required."""
    try:
        workspace = find_workspace(None, require_scaffold=False)
    except OsmosisError:
        return
    _locate(path, workspace, kind)


def _locate(path: Path, workspace: WorkspaceDirectory, kind: ConfigKind) -> Path:
    candidates = [workspace.root / expanded(path), expanded(path).absolute()]
    found = next((candidate for candidate in candidates if candidate.exists()), candidates[0])
    expected = workspace.root / kind.directory
    if not found.exists():
        entries = expected.glob("*.toml") if expected.is_dir() else ()
        names = [entry.name for entry in entries if not is_decide_file(entry)]
        raise OsmosisError(f"Config file not found: {path}", hint=_mend_of_name(kind, path.name, names))
    if found.suffix != ".toml":
        raise OsmosisError(f"A config is a .toml file in {kind.directory}/; {path} is not one.")
    if is_decide_file(found):
        raise OsmosisError(
            f"{path} holds what is decided about runs, and is no {kind.name} config.",
            hint=f"name the config that it is about: {decided_config(found).name}",
        )
    resolved = found.resolve()
    if not resolved.is_relative_to(expected.resolve()):
        raise OsmosisError(
            f"{kind.article} config must be inside {kind.directory}/ of the workspace directory.\n"
            f"  found:    {resolved}\n"
            f"  expected: {expected / found.name}",
            hint=_mend_of_place(kind, expected / found.name, resolved),
        )
    return workspace.root / kind.directory / resolved.relative_to(expected.resolve())


def _mend_of_name(kind: ConfigKind, name: str, names: Sequence[str]) -> str:
    suggestion = closest(name, names)
    if suggestion:
        return f"did you mean {kind.directory}/{suggestion}?"
    if not names:
        return f"{kind.directory}/ has no config yet"
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"{kind.directory}/ has {', '.join(sorted(names)[:_NAMED])}{more}"


def _mend_of_place(kind: ConfigKind, expected: Path, found: Path) -> str:
    named = f"{kind.directory}/{expected.name}"
    if expected.is_file() and expected.resolve() != found:
        return f"did you mean {named}?"
    return f"move it there, and name it as {named}"


def _read_text(path: Path, shown: str) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise OsmosisError(
            f"Cannot read config file {shown}: it is not UTF-8 (byte {error.start})."
        ) from None
    except OSError as error:
        raise OsmosisError(f"Cannot read config file {shown}: {error.strerror}.") from None
