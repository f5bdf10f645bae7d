"""The keys of a benchmark config, and the rules between them: which agents run which tasks, with which secrets.

Everything is strict here, and values of the settings are the platform's to judge beyond what no platform could take.
What may hold a key by mistake is never repeated in an issue.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, ValidationError
from pydantic_core import ErrorDetails

from osmosis_ai.config.checks import (
    SECRET_NAME,
    ConfigKind,
    document_issues,
    env_issues,
    is_secret_name,
    secret_name_issues,
)
from osmosis_ai.config.issues import Issue, as_written, closest, value_issue
from osmosis_ai.config.sections import ConfigSection, Count, CountOrZero, Finite, Positive

MOST_AGENTS = 8
MOST_SECRETS = 16
CURSOR_HARNESS, CURSOR_KEY = "cursor-cli", "CURSOR_API_KEY"
_MINI_HARNESS, _MINI_KEY = "mini-swe-agent", "MSWEA_API_KEY"
_OF_THE_PLATFORM = frozenset(
    {
        "DAYTONA_API_KEY",
        "DAYTONA_API_URL",
        "SKYPILOT_SERVICE_ACCOUNT_TOKEN",
        "SKYPILOT_API_SERVER_ENDPOINT",
    }
)


def _not_blank(value: str) -> str:
    if not value.strip():
        raise ValueError("must not be blank")
    return value


def _secret(value: str) -> str:
    if not is_secret_name(value):
        raise ValueError(f"must be the name of a secret, which matches ^{SECRET_NAME.pattern}$")
    return value


def _model_secret(value: str) -> str:
    if value in _OF_THE_PLATFORM:
        raise ValueError(f"must not be {value}, which belongs to the platform")
    return value


def _no_authorization(headers: dict[str, str]) -> dict[str, str]:
    if any(name.strip().lower() == "authorization" for name in headers):
        raise ValueError("must not hold an Authorization header: name the key as `api_key_secret`")
    if not all((name + value).isprintable() and name.strip() for name, value in headers.items()):
        raise ValueError("must be headers: printable, each with a name")
    return headers


Text = Annotated[str, AfterValidator(_not_blank)]
SecretName = Annotated[str, AfterValidator(_secret)]
ModelSecretName = Annotated[str, AfterValidator(_secret), AfterValidator(_model_secret)]


class BenchmarkExperiment(ConfigSection):
    """`[experiment]`: which benchmark."""

    benchmark: Text = Field(description="key of the benchmark, as `osmosis benchmark list` shows it")


class BenchmarkTasks(ConfigSection):
    """`[tasks]`: which of its tasks; all of them without it."""

    categories: list[Text] | None = Field(default=None, description="tasks of these categories")
    task_names: list[Text] | None = Field(default=None, description="these tasks")
    task_set: Literal["parity"] | None = Field(
        default=None,
        description="the tasks that published results are comparable with; goes before the others",
    )


class BenchmarkExecution(ConfigSection):
    """`[execution]`: how often, how many at once, who judges."""

    attempts_per_task: Count | None = Field(default=None, description="attempts on each task; 1 without it")
    max_concurrent_attempts: Count | None = Field(
        default=None, description="attempts under way at once; 4 without it"
    )
    timeout_multiplier: Positive | None = Field(
        default=None, description="times what the benchmark allows for a task"
    )
    max_retries: CountOrZero | None = Field(default=None, description="new tries of what failed by itself")
    pass_threshold: Finite | None = Field(default=None, description="a score at or above this passes")
    judge_model: Text | None = Field(
        default=None, description="the model that judges, where the benchmark has one"
    )
    judge_api_key_secret: SecretName | None = Field(
        default=None, description="name of the secret with its key"
    )


class BenchmarkVerifier(ConfigSection):
    """`[verifier]`: what the tasks' own checks need."""

    required: list[SecretName] = Field(
        default=[],
        max_length=MOST_SECRETS,
        description="names of secrets that the tasks' checks get, 16 at most",
    )


class ProviderModel(ConfigSection):
    """A model of a provider that the platform knows."""

    type: Literal["provider"]
    model: Text
    api_key_secret: ModelSecretName


class EndpointModel(ConfigSection):
    """A model behind an OpenAI-compatible endpoint."""

    type: Literal["endpoint"]
    base_url: Text
    model: Text
    api_key_secret: ModelSecretName
    extra_headers: Annotated[dict[str, str], AfterValidator(_no_authorization)] | None = None


class HostedModel(ConfigSection):
    """An adapter that was trained on the platform."""

    type: Literal["hosted"]
    base_model: Text
    lora_model_name: Text


_MODELS: Mapping[str, type[ConfigSection]] = {
    "provider": ProviderModel,
    "endpoint": EndpointModel,
    "hosted": HostedModel,
}


class BenchmarkAgent(ConfigSection):
    """`[[agents]]`: a model in a harness."""

    harness: Text | None = Field(
        default=None, description="what drives the model; the benchmark's own without it"
    )
    harness_api_key_secret: SecretName | None = Field(
        default=None, description=f"`{CURSOR_KEY}` for the harness `{CURSOR_HARNESS}`, and for no other"
    )
    model: Annotated[ProviderModel | EndpointModel | HostedModel, Field(discriminator="type")] = Field(
        description="`type` is `provider` (`model`, `api_key_secret`), `endpoint` (`base_url`, `model`, "
        "`api_key_secret`, and `extra_headers` where needed) or `hosted` (`base_model`, `lora_model_name`)"
    )
    env: dict[str, Any] = Field(default={}, description="variables of this agent, beside those of `[env]`")


BENCHMARK = ConfigKind(
    name="benchmark",
    article="A benchmark",
    directory="configs/benchmark",
    sections={
        "experiment": BenchmarkExperiment,
        "tasks": BenchmarkTasks,
        "execution": BenchmarkExecution,
        "verifier": BenchmarkVerifier,
    },
    secrets_required=False,
    free=("env", "secrets"),
    arrays=("agents",),
)


def benchmark_issues(document: Mapping[str, Any]) -> list[Issue]:
    """Return everything wrong in a benchmark config."""
    issues = [*document_issues(document, BENCHMARK), *_agents_issues(document)]
    verifier = _table(document, "verifier").get("required")
    if isinstance(verifier, list) and all(isinstance(name, str) for name in verifier):
        # Which of them is no name is said by the section's model.
        issues += [
            issue for issue in secret_name_issues("verifier.required", verifier) if "times" in issue.message
        ]
    required = _table(document, "secrets").get("required")
    if isinstance(required, list) and len(required) > MOST_SECRETS:
        issues.append(
            Issue("secrets.required", f"must have at most {MOST_SECRETS} names, got {len(required)}")
        )
    return issues


def referenced_secrets(document: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of all secrets that a config without issues needs, each once."""
    names: list[str | None] = []
    for agent in document["agents"]:
        names += [agent["model"].get("api_key_secret"), agent.get("harness_api_key_secret")]
    names.append(_table(document, "execution").get("judge_api_key_secret"))
    for section in ("verifier", "secrets"):
        names += _table(document, section).get("required", ())
    return tuple(dict.fromkeys(name for name in names if name))


def _agents_issues(document: Mapping[str, Any]) -> Iterator[Issue]:
    agents = document.get("agents")
    if agents is None:
        yield Issue("agents", "Missing [[agents]]: at least one agent has to run")
        return
    if not isinstance(agents, list) or not all(isinstance(agent, dict) for agent in agents):
        yield Issue("agents", "must be an array of tables: [[agents]]")
        return
    if not 1 <= len(agents) <= MOST_AGENTS:
        yield Issue("agents", f"must be 1 to {MOST_AGENTS} agents, got {len(agents)}")
    for position, agent in enumerate(agents):
        yield from _agent_issues(f"agents[{position}]", agent, document)


def _agent_issues(key: str, agent: Mapping[str, Any], document: Mapping[str, Any]) -> Iterator[Issue]:
    try:
        BenchmarkAgent.model_validate(agent)
    except ValidationError as error:
        yield from _model_issues(key, agent, error)
    env = agent.get("env", {})
    if isinstance(env, dict):
        yield from env_issues(env, f"{key}.env")
    yield from _harness_issues(key, agent)
    yield from _clashes(key, agent, document)


def _model_issues(key: str, agent: Mapping[str, Any], error: ValidationError) -> Iterator[Issue]:
    told = set()
    for detail in error.errors(include_url=False):
        place = [str(part) for part in detail["loc"]]
        section: type[ConfigSection] = BenchmarkAgent
        value: Any = agent
        if len(place) > 2 and place[0] == "model":
            # After `model` pydantic names the member of the union; what is meant is a key of the table.
            section, value, place = _MODELS[place[1]], agent["model"], ["model", *place[2:]]
        where = ".".join([key, *place])
        if where not in told:
            told.add(where)
            yield _issue(where, place[-1], value, detail, section)


def _issue(
    where: str, name: str, table: Mapping[str, Any], detail: ErrorDetails, section: type[ConfigSection]
) -> Issue:
    if detail["type"] == "missing":
        return Issue(where, "is missing")
    if detail["type"] == "extra_forbidden":
        return Issue(where, "Unrecognized key", suggestion=closest(name, section.model_fields))
    if detail["type"] in ("union_tag_not_found", "union_tag_invalid"):
        return Issue(f"{where}.type", f"must be one of {', '.join(_MODELS)}")
    if detail["type"] in ("model_attributes_type", "model_type", "dict_type"):
        return Issue(where, f"must be a table, got {as_written(detail['input'])}")
    if name in section.model_fields:
        return value_issue(where, table.get(name), detail, section)
    return Issue(where, "must be a string")


def _harness_issues(key: str, agent: Mapping[str, Any]) -> Iterator[Issue]:
    secret, place = agent.get("harness_api_key_secret"), f"{key}.harness_api_key_secret"
    if agent.get("harness") == CURSOR_HARNESS:
        if secret != CURSOR_KEY:
            yield Issue(place, f'must be "{CURSOR_KEY}" for the harness {CURSOR_HARNESS}')
    elif secret is not None:
        yield Issue(place, f"belongs to the harness {CURSOR_HARNESS} alone")


def _clashes(key: str, agent: Mapping[str, Any], document: Mapping[str, Any]) -> Iterator[Issue]:
    """Yield the variables of an agent that have the name of a secret which it gets."""
    model = agent.get("model")
    model = model if isinstance(model, dict) else {}
    injected = [model.get("api_key_secret"), _table(document, "execution").get("judge_api_key_secret")]
    verifier = _table(document, "verifier").get("required")
    injected += verifier if isinstance(verifier, list) else []
    if agent.get("harness") == CURSOR_HARNESS:
        injected.append(CURSOR_KEY)
    if agent.get("harness") == _MINI_HARNESS and model.get("type") != "hosted":
        injected.append(_MINI_KEY)
    own = agent.get("env")
    names = {**_table(document, "env"), **(own if isinstance(own, dict) else {})}
    taken = {name for name in injected if isinstance(name, str)}
    for name in sorted(taken.intersection(names)):
        place = f"{key}.env.{name}" if isinstance(own, dict) and name in own else f"env.{name}"
        yield Issue(place, f"has the name of a secret that {key} gets; one of the two must go")


def _table(document: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = document.get(name)
    return found if isinstance(found, dict) else {}
