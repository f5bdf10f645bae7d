"""The benchmark config: a model that validates the whole file before any network call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, ValidationInfo, field_validator
from pydantic_core import ErrorDetails

from osmosis_ai.config.checks import SECRET_NAME, ConfigKind, env_issues, in_file_order, is_secret_name
from osmosis_ai.config.issues import InvalidConfigError, Issue, closest, describe_error
from osmosis_ai.config.sections import ConfigSection, Count, CountOrZero, Finite, Positive, checked

BENCHMARK = ConfigKind("benchmark", "A benchmark", "configs/benchmark", (), dict)
_PLATFORM_SECRETS = (
    *("DAYTONA_API_KEY", "DAYTONA_API_URL"),
    *("SKYPILOT_SERVICE_ACCOUNT_TOKEN", "SKYPILOT_API_SERVER_ENDPOINT"),
)


def _secret_problem(name: str) -> str | None:
    known = is_secret_name(name)
    return None if known else f"must be the name of a secret, which matches ^{SECRET_NAME.pattern}$"


def _model_secret_problem(name: str) -> str | None:
    return f"must not be {name} (reserved by the platform)" if name in _PLATFORM_SECRETS else None


def _headers_problem(headers: dict[str, str]) -> str | None:
    if any(name.strip().lower() == "authorization" for name in headers):
        return "must not contain an Authorization header; use `api_key_secret`"
    return None


def _env_problem(env: dict[str, str]) -> str | None:
    return "; ".join(f"{issue.key}: {issue.message}" for issue in env_issues(env, "env")) or None


Text = Annotated[str, checked(lambda value: None if value.strip() else "must not be blank")]
SecretName = Annotated[str, checked(_secret_problem)]
ModelSecret = Annotated[SecretName, checked(_model_secret_problem)]
Headers = Annotated[dict[str, str], checked(_headers_problem)]
Variables = Annotated[dict[str, str], checked(_env_problem)]


class BenchmarkExperiment(ConfigSection):
    benchmark: Text


class BenchmarkTasks(ConfigSection):
    categories: list[Text] | None = None
    task_names: list[Text] | None = None
    task_set: Literal["parity"] | None = None


class BenchmarkExecution(ConfigSection):
    attempts_per_task: Count | None = None
    max_concurrent_attempts: Count | None = None
    timeout_multiplier: Positive | None = None
    max_retries: CountOrZero | None = None
    pass_threshold: Finite | None = None
    judge_model: Text | None = None
    judge_api_key_secret: SecretName | None = None


class SecretNames(ConfigSection):
    """`[secrets]` or `[verifier]`."""

    required: Annotated[list[SecretName], Field(max_length=16)] = []


class ProviderModel(ConfigSection):
    type: Literal["provider"]
    model: Text
    api_key_secret: ModelSecret


class EndpointModel(ConfigSection):
    type: Literal["endpoint"]
    base_url: Text
    model: Text
    api_key_secret: ModelSecret
    extra_headers: Headers | None = None


class HostedModel(ConfigSection):
    type: Literal["hosted"]
    base_model: Text
    lora_model_name: Text


class BenchmarkAgent(ConfigSection):
    harness: Text | None = None
    harness_api_key_secret: str | None = Field(default=None, validate_default=True)
    model: Annotated[ProviderModel | EndpointModel | HostedModel, Field(discriminator="type")]
    env: Variables = {}

    @field_validator("harness_api_key_secret")
    @classmethod
    def _belongs_to_cursor(cls, secret: str | None, info: ValidationInfo) -> str | None:
        expected = "CURSOR_API_KEY" if info.data.get("harness") == "cursor-cli" else None
        if secret != expected:
            raise ValueError('must be "CURSOR_API_KEY" for cursor-cli, and unset for any other harness')
        return secret

    @property
    def secrets(self) -> tuple[str, ...]:
        """The names of the secrets that the config passes to this agent."""
        key = None if isinstance(self.model, HostedModel) else self.model.api_key_secret
        return tuple(name for name in (key, self.harness_api_key_secret) if name)


class BenchmarkConfig(ConfigSection):
    """A file of `configs/benchmark/`."""

    experiment: BenchmarkExperiment
    tasks: BenchmarkTasks = BenchmarkTasks()
    execution: BenchmarkExecution = BenchmarkExecution()
    verifier: SecretNames = SecretNames()
    env: Variables = {}
    secrets: SecretNames = SecretNames()
    agents: Annotated[list[BenchmarkAgent], Field(min_length=1, max_length=8)]

    @field_validator("agents")
    @classmethod
    def _variables_are_not_secrets(
        cls, agents: list[BenchmarkAgent], info: ValidationInfo
    ) -> list[BenchmarkAgent]:
        config = cls.model_construct(**info.data)  # sections that have errors get their defaults
        env, shared = config.env, {config.execution.judge_api_key_secret, *config.verifier.required}
        clashes = [
            f"{name} is in both [env] and [secrets]" for name in config.secrets.required if name in env
        ]
        for position, agent in enumerate(agents):
            injected = {*agent.secrets, *shared}
            if agent.harness == "mini-swe-agent" and not isinstance(agent.model, HostedModel):
                injected.add("MSWEA_API_KEY")
            taken = [name for name in sorted({*env, *agent.env}) if name in injected]
            clashes += [f"agents[{position}] has a variable and a secret named {name}" for name in taken]
        if clashes:
            raise ValueError("; ".join(clashes))
        return agents

    @property
    def referenced_secrets(self) -> tuple[str, ...]:
        """The names of all secrets that a run needs."""
        names = [name for agent in self.agents for name in agent.secrets]
        names += [self.execution.judge_api_key_secret or "", *self.verifier.required, *self.secrets.required]
        return tuple(dict.fromkeys(filter(None, names)))

    def payload(self, provided: Mapping[str, str]) -> dict[str, Any]:
        """Return the body of a submit: the content of the file without empty parts."""
        written = self.model_dump(exclude_unset=True)
        verifier = {"verifier_secrets": self.verifier.required} if self.verifier.required else {}
        required = self.secrets.required
        parts = {
            "tasks_config": written.get("tasks"),
            "execution_config": {**written.get("execution", {}), **verifier},
            "env_config": self.env,
            "secrets": {"required": required, "provided": dict(provided)} if required else None,
        }
        return {
            "experiment_config": written["experiment"],
            # On the wire, agents always have `env`.
            "agents": [{**agent, "env": agent.get("env", {})} for agent in written["agents"]],
            **{name: part for name, part in parts.items() if part},
        }

    def described(self) -> dict[str, Any]:
        """Return the sections for display, with only the names of headers, because a value may be a key."""
        written = self.model_dump(exclude_unset=True)
        for agent in written["agents"]:
            if "extra_headers" in agent["model"]:
                agent["model"]["extra_headers"] = sorted(agent["model"]["extra_headers"])
        return {name: written.get(name, {}) for name in ("experiment", "tasks", "agents", "execution")}


_TABLES = (BenchmarkConfig, BenchmarkTasks, BenchmarkExecution, BenchmarkAgent, EndpointModel, HostedModel)
_KEYS = {key for table in _TABLES for key in table.model_fields}
_MISSING = {"experiment": "Missing [experiment] section", "agents": "Missing [[agents]]: add 1 to 8 agents"}


def parse_benchmark_config(document: Mapping[str, Any], shown_path: str, text: str) -> BenchmarkConfig:
    """Validate a parsed config."""
    try:
        return BenchmarkConfig.model_validate(document)
    except ValidationError as error:
        issues = [_issue(detail) for detail in error.errors(include_url=False, include_input=False)]
        raise InvalidConfigError(BENCHMARK.name, shown_path, in_file_order(issues, text)) from None


def _issue(detail: ErrorDetails) -> Issue:
    parts = [f"[{part}]" if isinstance(part, int) else f".{part}" for part in detail["loc"]]
    if parts[2:3] == [".model"]:
        del parts[3:4]  # Pydantic adds the type of the model.
    key = "".join(parts).removeprefix(".")
    match detail["type"]:
        case "missing":
            return Issue(key, _MISSING.get(key, "is missing"))
        case "extra_forbidden":
            return Issue(key, "Unrecognized key", suggestion=closest(str(detail["loc"][-1]), _KEYS))
        case "union_tag_not_found" | "union_tag_invalid":
            return Issue(f"{key}.type", "must be one of provider, endpoint, hosted")
    return Issue(key, describe_error(detail))
