"""The sections of a config and every key in them, declared once: type, range, meaning.

Types are strict: a boolean is no number, a number in quotes is a string, and nan is no number at all.
Ranges exclude only what no platform could accept.
"""

from __future__ import annotations

import re
from pathlib import PurePosixPath, PureWindowsPath
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

LARGEST_COUNT = 2**31 - 1

_COMMIT_SHA = re.compile(r"[0-9a-fA-F]{7,40}")
_PLACEHOLDER = re.compile(r"<.*>", re.DOTALL)


def _model_path(value: str) -> str:
    return _written(value, "the name of a model, such as openai/gpt-5-mini")


def _dataset(value: str) -> str:
    if "/" in value or "\\" in value:
        raise ValueError("must be the name of a dataset, not a path: the file's name without its extension")
    return _written(
        value, "the name of a dataset: a file in data/ without its extension, or one on the platform"
    )


def _written(value: str, meaning: str) -> str:
    if not value.strip():
        raise ValueError(f"must not be empty: it is {meaning}")
    if _PLACEHOLDER.fullmatch(value.strip()):
        raise ValueError(f"is still a placeholder: write {meaning}")
    return value


def rollout_name_problem(rollout: str) -> str | None:
    """Return what is wrong with ``rollout`` as the name of a directory under `rollouts/`, or None."""
    if not rollout.strip():
        return "must not be empty"
    if PurePosixPath(rollout).is_absolute() or PureWindowsPath(rollout).drive:
        return "must be the name of a directory under rollouts/, not an absolute path"
    if rollout in (".", "..") or "/" in rollout or "\\" in rollout or "\0" in rollout:
        return "must be the name of one directory under rollouts/, without slashes"
    return None


def entrypoint_problem(entrypoint: str) -> str | None:
    """Return what is wrong with ``entrypoint`` as a path inside the rollout's directory, or None."""
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


def _rollout(value: str) -> str:
    if problem := rollout_name_problem(value):
        raise ValueError(problem)
    return value


def _entrypoint(value: str) -> str:
    if problem := entrypoint_problem(value):
        raise ValueError(problem)
    return value


def _branch(value: str) -> str:
    if not value or any(character.isspace() for character in value):
        raise ValueError("must be the name of a branch, without white space")
    return value


def _commit_sha(value: str) -> str:
    if not _COMMIT_SHA.fullmatch(value):
        raise ValueError("must be 7 to 40 hexadecimal digits")
    return value


Count = Annotated[int, Field(ge=1, le=LARGEST_COUNT)]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class Section(BaseModel):
    """A table of a config; what is not written keeps the default that is declared here."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, protected_namespaces=())


class Experiment(Section):
    """`[experiment]`: which agent, which model, which rows."""

    rollout: Annotated[str, AfterValidator(_rollout)] = Field(description="directory under rollouts/")
    entrypoint: Annotated[str, AfterValidator(_entrypoint)] = Field(
        description="script in it that serves the agent"
    )
    model_path: Annotated[str, AfterValidator(_model_path)] = Field(
        description="LiteLLM-style name of the policy"
    )
    dataset: Annotated[str, AfterValidator(_dataset)] = Field(description="name of the dataset")
    branch: Annotated[str, AfterValidator(_branch)] | None = Field(
        default=None, description="platform runs take the code from this branch"
    )
    commit_sha: Annotated[str, AfterValidator(_commit_sha)] | None = Field(
        default=None, description="platform runs take the code from this commit; not together with branch"
    )


class EvaluationSettings(Section):
    """`[evaluation]`: how much is evaluated, and what passes."""

    limit: Count | None = Field(default=None, description="the first rows of the dataset")
    n: Count = Field(default=1, description="attempts per row")
    batch_size: Count | None = Field(default=None, description="rollouts in flight at once")
    pass_threshold: Annotated[float, Field(allow_inf_nan=False)] = Field(
        default=1.0, description="a reward at or above this passes"
    )
    agent_workflow_timeout_s: Seconds | None = Field(default=None, description="for one attempt of the agent")
    grader_timeout_s: Seconds | None = Field(default=None, description="for grading one attempt")


class TrainingSettings(Section):
    """`[training]`: the optimiser and the size of a step."""

    lr: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = Field(
        default=None, description="learning rate"
    )
    total_epochs: Count | None = Field(default=None, description="passes over the dataset")
    n_samples_per_prompt: Count | None = Field(default=None, description="attempts compared with each other")
    rollout_batch_size: Count | None = Field(default=None, description="prompts per step")
    max_prompt_length: Count | None = Field(default=None, description="tokens")
    max_response_length: Count | None = Field(default=None, description="tokens")
    agent_workflow_timeout_s: Seconds | None = Field(default=None, description="for one attempt of the agent")
    grader_timeout_s: Seconds | None = Field(default=None, description="for grading one attempt")


class SamplingSettings(Section):
    """`[sampling]`: how the policy is sampled while it trains."""

    rollout_temperature: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = Field(
        default=None, description="sampling temperature"
    )
    rollout_top_p: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)] | None = Field(
        default=None, description="nucleus sampling"
    )


class CheckpointSettings(Section):
    """`[checkpoints]`: when the policy is measured and kept."""

    eval_interval: Count | None = Field(default=None, description="steps between validations")
    checkpoint_save_freq: Count | None = Field(default=None, description="steps between checkpoints")
