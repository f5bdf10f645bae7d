"""The base of all config sections, and the sections of evaluations; those of training are in ``training``.

A key is declared once, in the model of its section: type, range, default, meaning. Files, the wire, this platform, the
executors of runs, the tables of the docs and the configs of a new rollout all use that declaration.

Types are strict: a boolean is not a number, a number in quotes is a string, and nan is rejected. Ranges exclude only
values that no platform could accept.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import PurePosixPath, PureWindowsPath
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

LARGEST_COUNT = 2**31 - 1

SERVED_AGENT = "server://"
"""The prefix of a remote agent's entrypoint (`osmosis serve`)."""
PREVIEWS_KEY = "previews"
"""The key of ``[advanced]`` that turns previews off."""

_PLACEHOLDER = re.compile(r"<.*>", re.DOTALL)


def checked(problem: Callable[[Any], str | None]) -> AfterValidator:
    """Return the validator that refuses a value if ``problem`` describes one."""

    def check(value: Any) -> Any:
        if found := problem(value):
            raise ValueError(found)
        return value

    return AfterValidator(check)


def matching(pattern: str, problem: str) -> Callable[[str], str]:
    """Return the function that raises a ValueError unless a text matches a pattern."""

    def check(value: str) -> str:
        if not re.fullmatch(pattern, value):
            raise ValueError(problem)
        return value

    return check


def _not_blank(meaning: str) -> AfterValidator:
    def problem(value: str) -> str | None:
        if not value.strip():
            return f"must not be empty: it is {meaning}"
        return f"is still a placeholder: write {meaning}" if _PLACEHOLDER.fullmatch(value.strip()) else None

    return checked(problem)


def rollout_name_problem(rollout: str) -> str | None:
    """Return why ``rollout`` is not a valid directory name under `rollouts/`, or None."""
    if not rollout.strip():
        return "must not be empty"
    if PurePosixPath(rollout).is_absolute() or PureWindowsPath(rollout).drive:
        return "must be the name of a directory under rollouts/, not an absolute path"
    if rollout in (".", "..") or "/" in rollout or "\\" in rollout or "\0" in rollout:
        return "must be the name of one directory under rollouts/, without slashes"
    return None


def served_agent(entrypoint: str) -> str | None:
    """Return the remote agent that an entrypoint names after `server://`, or None for a file."""
    return entrypoint.removeprefix(SERVED_AGENT) if entrypoint.startswith(SERVED_AGENT) else None


def entrypoint_problem(entrypoint: str) -> str | None:
    """Return why ``entrypoint`` is not a valid path inside the rollout's directory, or None."""
    agent = served_agent(entrypoint)
    if agent is not None:
        named = agent and agent == agent.strip() and agent.isprintable() and not _PLACEHOLDER.fullmatch(agent)
        return None if named else f"must name a served agent: {SERVED_AGENT}NAME, or {SERVED_AGENT}HOST:PORT"
    if not entrypoint.strip() or "\0" in entrypoint:
        return "must not be empty"
    if PurePosixPath(entrypoint).is_absolute() or PureWindowsPath(entrypoint).drive:
        return "must be a path inside the rollout's directory, not an absolute path"
    depth = 0
    for part in PurePosixPath(entrypoint.replace("\\", "/")).parts:
        depth += -1 if part == ".." else 1
        if depth < 0:
            return "must not leave the rollout's directory"
    return None


_not_a_path = matching(
    r"[^/\\]*", "must be the name of a dataset, not a path: the file's name without its extension"
)
_branch = matching(r"\S+", "must be the name of a branch, without white space")
_commit_sha = matching(r"[0-9a-fA-F]{7,40}", "must be 7 to 40 hexadecimal digits")

Count = Annotated[int, Field(ge=1, le=LARGEST_COUNT)]
CountOrZero = Annotated[int, Field(ge=0, le=LARGEST_COUNT)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]


def setting(default: Any, description: str, *, example: Any = None) -> Any:
    """Declare an optional key: its default, its meaning, and an example if the default says little."""
    return Field(default=default, description=description, examples=None if example is None else [example])


class ConfigSection(BaseModel):
    """A table of a config; missing keys get their declared defaults."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, protected_namespaces=())


class Experiment(ConfigSection):
    """`[experiment]`: the agent, model and dataset."""

    rollout: Annotated[str, checked(rollout_name_problem)] = Field(description="directory under `rollouts/`")
    entrypoint: Annotated[str, checked(entrypoint_problem)] = Field(
        description="script in it that serves the agent, usually `main.py`; or `server://NAME` for a remote agent"
    )
    model_path: Annotated[str, _not_blank("the name of a model, such as openai/gpt-5-mini")] = Field(
        description="LiteLLM-style name of the model"
    )
    dataset: Annotated[
        str,
        AfterValidator(_not_a_path),
        _not_blank("the name of a dataset: a file in data/ without its extension, or one on the platform"),
    ] = Field(description="name of the dataset")
    branch: Annotated[str, AfterValidator(_branch)] | None = setting(
        None, "branch of the code for platform runs", example="main"
    )
    commit_sha: Annotated[str, AfterValidator(_commit_sha)] | None = setting(
        None,
        "commit of the code for platform runs, 7 to 40 hexadecimal digits; not with `branch`",
        example="0123abc",
    )


class EvaluationSettings(ConfigSection):
    """`[evaluation]`: how much is evaluated, and the threshold for passing."""

    limit: Count | None = setting(
        None, "number of first rows (default: all with `eval run`, a random 10% on a platform)", example=200
    )
    n: Count = setting(1, "attempts per row; more than 1 estimates pass@k")
    batch_size: Count | None = setting(
        None, "concurrent rollouts (default: as many as the rollout's server accepts)", example=32
    )
    pass_threshold: Finite = setting(1.0, "lowest reward that passes")
    agent_workflow_timeout_s: Positive | None = setting(
        None, "time limit of one attempt of the agent, in seconds (default: one hour)", example=450
    )
    grader_timeout_s: Positive | None = setting(
        None, "time limit of grading one attempt, in seconds (default: one hour)", example=150
    )


def previews_enabled(advanced: Mapping[str, Any] | None) -> bool:
    """Return whether records contain previews; ``[advanced] previews = false`` turns them off."""
    return (advanced or {}).get(PREVIEWS_KEY, True) is True
