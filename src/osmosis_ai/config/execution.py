"""``[advanced.execution]``: a run's requirements for the machine that executes it, for every kind of run.

Clients send the table as written; our platform and the commands that check a config validate it. A run may request
more isolation than a machine's default, never less.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, Field, ValidationError

from osmosis_ai.config.issues import Issue, as_written, closest, table_issues
from osmosis_ai.config.sections import ConfigSection, Count, CountOrZero, Positive, matching, setting
from osmosis_ai.sandbox.bubblewrap import Network
from osmosis_ai.sandbox.isolation import ISOLATION_ENV, IsolationSetting

EXECUTION = "execution"
"""The table's key in ``[advanced]``."""
PLACE = f"advanced.{EXECUTION}"
MOST_SERVERS = 8

pool_name = matching(
    r"(?=.*[A-Za-z0-9])[A-Za-z0-9_.-]{1,64}",
    "must be the name of a pool of workers: letters, digits, `-`, `_` and `.`, at most 64",
)
label_name = matching(
    r"[A-Za-z0-9][A-Za-z0-9_.=:/-]{0,63}",
    "must be a label of workers, such as `a100` or `zone=eu`: letters, digits and `_.=:/-`, at most 64",
)


class ExecutionSection(ConfigSection):
    """`[advanced.execution]`: where a run is executed, and what its rollouts may access there."""

    cpus: Positive | None = setting(None, "required processors")
    gpus: CountOrZero | None = setting(None, "required GPUs")
    memory_gb: Positive | None = setting(None, "memory of all rollouts together, in GiB")
    pool: Annotated[str, AfterValidator(pool_name)] | None = setting(None, "pool of workers for the run")
    labels: Annotated[list[Annotated[str, AfterValidator(label_name)]], Field(max_length=16)] | None = (
        setting(None, "labels that a worker of the pool must have")
    )
    network: Network | None = setting(
        None, "network of rollouts: that of the machine (`host`) or only the run's model (`none`)"
    )
    isolation: IsolationSetting | None = setting(None, "whether rollouts require a sandbox; `off` is refused")
    servers: Annotated[int, Field(ge=1, le=MOST_SERVERS)] | None = setting(None, "rollout servers of the run")
    workers: Annotated[int, Field(ge=1, le=64)] | None = setting(
        None, "workers that share the rows of an evaluation"
    )
    max_cost: Positive | None = setting(None, "US dollars after which an evaluation on the platform ends")
    max_tokens: Count | None = setting(None, "tokens after which an evaluation on the platform ends")

    @property
    def needs_sandbox(self) -> bool:
        """Whether the run requires a sandbox."""
        return self.isolation == "required" or self.network == "none"


def execution_issues(document: Mapping[str, Any], kind: str = "eval") -> Iterator[Issue]:
    """Yield the issues in a config's execution table, or in a table that looks like a misspelling of it."""
    advanced = document.get("advanced")
    if not isinstance(advanced, Mapping):
        return
    for key, value in advanced.items():
        if key != EXECUTION and isinstance(value, Mapping) and closest(key, [EXECUTION]):
            yield Issue(f"advanced.{key}", "Unrecognized table", suggestion=EXECUTION)
    table = advanced.get(EXECUTION, {})
    if not isinstance(table, Mapping):
        yield Issue(PLACE, f"must be a table, got {as_written(table)}")
        return
    yield from table_issues(PLACE, table, ExecutionSection)
    if table.get("labels") and table.get("pool") is None:
        yield Issue(f"{PLACE}.labels", "chooses among the workers of a pool: name it with `pool`")
    workers = table.get("workers")
    if kind == "training" and isinstance(workers, int) and workers > 1:
        yield Issue(f"{PLACE}.workers", f"must be 1, got {workers}: only evaluations use several workers")
    for key in ("max_cost", "max_tokens") if kind == "training" else ():
        if key in table:
            yield Issue(
                f"{PLACE}.{key}",
                "is only for evaluations; `max_steps` and `total_epochs` limit a training run",
            )
    if table.get("isolation") == "off":
        yield Issue(
            f"{PLACE}.isolation",
            "a config may ask for more isolation than a machine gives by itself, never for less: leave it out; the operator of "
            f"that machine can set {ISOLATION_ENV}=off there",
        )


def is_of_our_table(issue: Issue, advanced: Mapping[str, Any]) -> bool:
    """Return whether an issue is about the execution table: one with any of our keys, possibly misspelled, or a value in
    its place that is not a table.
    """
    section, _, rest = issue.key.partition(".")
    table = advanced.get(rest.partition(".")[0]) if section == "advanced" else None
    ours = ExecutionSection.model_fields
    known = isinstance(table, Mapping) and any(key in ours or closest(key, ours) for key in table)
    return known or issue.key == PLACE


def read_execution(advanced: Mapping[str, Any] | None) -> ExecutionSection:
    """Return the requirements in a run's ``[advanced]``; the defaults if they are invalid."""
    try:
        return ExecutionSection.model_validate((advanced or {}).get(EXECUTION, {}))
    except ValidationError:
        return ExecutionSection()
