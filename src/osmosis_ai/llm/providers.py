"""Resolve a model's name to its provider, address, key and protocol.

Providers that speak OpenAI's protocol are called directly, by the table below; every other one through LiteLLM, whose
names of providers apply. Only :attr:`ModelEndpoint.api_key` contains a key, and it is never printed.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal
from urllib.parse import SplitResult, unquote_plus, urlsplit, urlunsplit

from osmosis_ai.errors import ConflictError, OsmosisError

# The prefixes of providers' keys. An account name in a gateway's path is not secret and does not have them.
_KEY_IN_A_PATH = re.compile(r"/(sk-|sk_|osm_|hf_|gsk_|xai-|nvapi-|AIza|AKIA)[\w-]{12,}")
ONLY_ADDRESS_ENV = "_OSMOSIS_ONLY_ADDRESS"
"""The host and port of the run's model, for a rollout without a network, which can reach only this address."""


@dataclass(frozen=True)
class Provider:
    """A provider: its address and the variables of its keys and address. A local one is the user's own server."""

    base_url: str | None
    keys: tuple[str, ...]
    bases: tuple[str, ...] = ()
    tokens: tuple[str, ...] = ()  # variables of other credentials that are sent to its address
    is_local: bool = False
    path: str = ""
    model_prefix: str = ""
    renames: Mapping[str, str] = field(default_factory=dict)


def _provider(base_url: str | None, keys: str, bases: str = "", **options: Any) -> Provider:
    """Return a provider by the usual names of variables: "GROQ" means GROQ_API_KEY and GROQ_API_BASE."""
    return Provider(
        base_url,
        tuple(f"{name}_API_KEY" for name in keys.split()),
        tuple(f"{name}_API_BASE" for name in (bases or keys).split()[:1]),
        **options,
    )


_OLLAMA = _provider("http://localhost:11434/v1", "OLLAMA", is_local=True, path="/v1")

OPENAI_COMPATIBLE: dict[str, Provider] = {
    "openai": Provider(
        "https://api.openai.com/v1", ("OPENAI_API_KEY",), ("OPENAI_BASE_URL", "OPENAI_API_BASE")
    ),
    "hosted_vllm": _provider(None, "HOSTED_VLLM", is_local=True),
    "ollama": _OLLAMA,
    "ollama_chat": _OLLAMA,
    "lm_studio": _provider("http://localhost:1234/v1", "LM_STUDIO", is_local=True),
    "llamafile": _provider("http://127.0.0.1:8080/v1", "LLAMAFILE", is_local=True),
    "openrouter": _provider("https://openrouter.ai/api/v1", "OPENROUTER OR"),
    "groq": _provider("https://api.groq.com/openai/v1", "GROQ"),
    "deepseek": _provider("https://api.deepseek.com/v1", "DEEPSEEK"),
    "together_ai": _provider("https://api.together.xyz/v1", "TOGETHERAI TOGETHER TOGETHER_AI", "TOGETHER_AI"),
    "fireworks_ai": _provider(
        "https://api.fireworks.ai/inference/v1",
        "FIREWORKS_AI FIREWORKS FIREWORKSAI",
        "FIREWORKS",
        model_prefix="accounts/fireworks/models/",
    ),
    "mistral": _provider(
        "https://api.mistral.ai/v1",
        "MISTRAL",
        renames={"seed": "random_seed", "max_completion_tokens": "max_tokens"},
    ),
    "xai": _provider("https://api.x.ai/v1", "XAI"),
    "cerebras": _provider("https://api.cerebras.ai/v1", "CEREBRAS"),
    "perplexity": _provider("https://api.perplexity.ai", "PERPLEXITYAI PERPLEXITY", "PERPLEXITY"),
    "deepinfra": _provider("https://api.deepinfra.com/v1/openai", "DEEPINFRA"),
    "nvidia_nim": _provider("https://integrate.api.nvidia.com/v1", "NVIDIA_NIM"),
    "sambanova": _provider("https://api.sambanova.ai/v1", "SAMBANOVA"),
    "nebius": _provider("https://api.studio.nebius.ai/v1", "NEBIUS"),
    "hyperbolic": _provider("https://api.hyperbolic.xyz/v1", "HYPERBOLIC"),
    "novita": _provider("https://api.novita.ai/v3/openai", "NOVITA"),
    "litellm_proxy": _provider(None, "LITELLM_PROXY"),
}

_AZURE_TOKENS = ("AZURE_AD_TOKEN", "AZURE_CLIENT_SECRET")
# Providers called through LiteLLM whose key is one variable. The others find their credentials themselves (AWS
# profiles, application default credentials ...), so only the preflight detects missing ones.
_THROUGH_LITELLM: dict[str, Provider] = {
    "anthropic": _provider(None, "ANTHROPIC"),
    "azure": _provider(None, "AZURE", tokens=_AZURE_TOKENS),
    "azure_ai": _provider(None, "AZURE_AI", tokens=("AZURE_API_KEY", *_AZURE_TOKENS)),
    "ai21": Provider(None, ("AI21_API_KEY",)),
    "moonshot": Provider(None, ("MOONSHOT_API_KEY",)),
    "dashscope": Provider(None, ("DASHSCOPE_API_KEY",)),
    **dict.fromkeys(("cohere", "cohere_chat"), Provider(None, ("COHERE_API_KEY", "CO_API_KEY"))),
    "gemini": Provider(None, ("GEMINI_API_KEY", "GOOGLE_API_KEY")),
    "huggingface": Provider(None, ("HF_TOKEN", "HUGGINGFACE_API_KEY")),
    "replicate": Provider(None, ("REPLICATE_API_KEY", "REPLICATE_API_TOKEN")),
}
_PROVIDERS = OPENAI_COMPATIBLE | _THROUGH_LITELLM
# LiteLLM looks up AWS's credentials and address itself.
_AWS_KEYS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_BEARER_TOKEN_BEDROCK")
CLOUD_SETTINGS = frozenset(
    {
        *("AWS_REGION", "AWS_REGION_NAME", "AWS_DEFAULT_REGION"),
        *("AZURE_API_VERSION", "AZURE_TENANT_ID", "AZURE_CLIENT_ID"),
    }
)
"""Settings that are part of an address at the cloud's own host."""
_BARE_NAMES = (
    (re.compile(r"(gpt|chatgpt|o[134]|o\d+-(mini|pro|preview)|codex)(-|$)"), "openai"),
    (re.compile(r"claude"), "anthropic"),
    (re.compile(r"gemini|gemma-"), "gemini"),
    (re.compile(r"grok"), "xai"),
    (re.compile(r"deepseek-(chat|reasoner)"), "deepseek"),
    (re.compile(r"(mistral|magistral|codestral|ministral|devstral)-"), "mistral"),
    (re.compile(r"command-"), "cohere"),
)
# "apikey" and "accessToken", but not "max_tokens", "design" or "encode".
_SECRET_NAME = re.compile(r"(?:key|token|secret|password|(?<![a-z])(?:sig|auth|code))(?![a-z])", re.I)


@dataclass(frozen=True)
class ModelEndpoint:
    """A model's provider and how to call it."""

    model_path: str
    provider: str
    model: str
    transport: Literal["openai", "litellm"]
    base_url: str | None
    api_key: str | None = field(default=None, repr=False)

    @property
    def secrets(self) -> tuple[str, ...]:
        """The values to redact: the key, and values in the address's query whose names mark them as keys."""
        pairs = [pair.partition("=") for pair in urlsplit(self.base_url or "").query.split("&")]
        raw = [
            value for name, _, value in pairs if len(value) >= 6 and _SECRET_NAME.search(unquote_plus(name))
        ]
        return tuple(filter(None, [self.api_key, *raw, *map(unquote_plus, raw)]))

    @property
    def limiter_key(self) -> str:
        """Identifies a rate limit: the provider's address and account."""
        import hashlib

        account = hashlib.sha256((self.api_key or "").encode()).hexdigest()[:12]
        return f"{self.provider}|{self.base_url or ''}|{account}"


def resolve_model(model_path: str, env: Mapping[str, str], *, served: Collection[str] = ()) -> ModelEndpoint:
    """Find the provider of ``model_path``; a built-in model is one of ``served`` and has no address before its start."""
    path = model_path.strip()
    if path in served:
        return ModelEndpoint(path, "osmosis", path.partition("/")[2], "openai", None)
    name, model = split_model_path(path, served=served)
    variables = key_variables(name)
    key = _first(env, variables)
    known = OPENAI_COMPATIBLE.get(name)
    if known is None:
        base = _first(env, _PROVIDERS[name].bases) if name in _PROVIDERS else None
        needs_key = bool(variables) and name != "azure"  # Azure also takes Entra ID tokens
    else:
        base = compatible_base_url(name, env)
        if base is None:
            raise OsmosisError(
                f"{known.bases[0]}, the address of the server, is not set (required by {path}).",
                hint=f"export {known.bases[0]}=http://localhost:8000/v1",
            )
        # The user's own server with the provider's protocol rarely requires a key; the preflight checks.
        needs_key = not known.is_local and base == known.base_url
        if known.model_prefix and "/" not in model:
            model = known.model_prefix + model
    if key is None and needs_key:
        raise OsmosisError(
            f"{variables[0]} is not set (required by {path}).",
            hint=f"export {variables[0]}=...",
            details={"missing_variable": variables[0]},
        )
    refuse_redirect(address_variables_of(name), env, key)
    return ModelEndpoint(path, name, model, "openai" if known else "litellm", base, key)


def split_model_path(path: str, *, served: Collection[str] = ()) -> tuple[str, str]:
    """Split a model's name into provider and model; without a provider, it must be a well-known name."""
    provider, slash, model = path.partition("/")
    if not slash and (inferred := well_known_provider(path)) is not None:
        return inferred, path
    if not model or any(map(str.isspace, path)) or provider == "osmosis" or not is_provider(provider):
        raise _unknown_name(path, served)
    return provider, model


def well_known_provider(name: str) -> str | None:
    """Return the provider of a well-known model without a prefix, such as `gpt-5-mini`."""
    return next((provider for pattern, provider in _BARE_NAMES if pattern.match(name)), None)


def is_provider(name: str) -> bool:
    return name in _providers()


def key_variables(provider: str) -> tuple[str, ...]:
    """Return the variables that may contain the provider's key, the usual one first; empty if it needs no single key."""
    return _PROVIDERS[provider].keys if provider in _PROVIDERS else ()


def credential_variables() -> frozenset[str]:
    return frozenset(_AWS_KEYS).union(*((*known.keys, *known.tokens) for known in _PROVIDERS.values()))


def address_variables() -> dict[str, tuple[str, ...]]:
    """Return every variable with a provider's address, and the variables with the credentials sent there."""
    return {base: (*known.keys, *known.tokens) for known in _PROVIDERS.values() for base in known.bases}


def keyless_address_variables() -> frozenset[str]:
    return frozenset(base for known in _PROVIDERS.values() if known.is_local for base in known.bases)


def address_variables_of(provider: str) -> tuple[str, ...]:
    if provider in OPENAI_COMPATIBLE:
        return OPENAI_COMPATIBLE[provider].bases
    # LiteLLM has variants such as `azure_text` and `text-completion-openai`.
    return tuple(base for base in address_variables() if base.partition("_")[0].lower() in provider)


def compatible_base_url(name: str, env: Mapping[str, str]) -> str | None:
    """Return the address of a provider that speaks OpenAI's protocol: its variable's, otherwise its default."""
    provider = OPENAI_COMPATIBLE[name]
    given = _first(env, provider.bases)
    if given is None:
        return provider.base_url
    parts, variable, key = http_address(given), provider.bases[0], provider.keys[0]
    if parts is None:
        raise OsmosisError(
            f"{variable} is not an http(s) address.", hint=f"export {variable}=http://localhost:8000/v1"
        )
    if parts.username or parts.password:
        raise OsmosisError(f"{variable} contains a user name or password.", hint=f"export {key}=...")
    return openai_base_url(given, provider.path)


def http_address(text: str) -> SplitResult | None:
    """Return the parts of an http(s) address, or None if it is not a valid one."""
    try:
        parts = urlsplit(text.strip())
        is_valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # such as a port above 65535
        return None
    return parts if is_valid else None


def openai_base_url(address: str, path: str = "") -> str:
    """Return the base URL of an address: without ``/chat/completions``, with ``path`` if missing; the query is kept."""
    parts = urlsplit(address.strip())
    base = parts.path.rstrip("/").removesuffix("/chat/completions").rstrip("/")
    return urlunsplit(parts._replace(path=base if base.endswith(path) else base + path, fragment=""))


def _first(env: Mapping[str, str], names: tuple[str, ...]) -> str | None:
    """Return the value of the first of ``names`` that is set and not empty."""
    return next((value for name in names if (value := env.get(name, "").strip())), None)


def _unknown_name(path: str, served: Collection[str]) -> OsmosisError:
    import difflib

    provider, slash, model = path.partition("/")
    if slash and provider == "osmosis":
        if not served:
            return OsmosisError(f"Built-in models are not available here: {path}.")
        return OsmosisError(f"Unknown built-in model: {path} (available: {', '.join(served)}).")
    if not slash and re.search(r"-step-\d+$", path):
        return OsmosisError(
            f"Unknown model: {path} (write a deployed adapter as 'BASE:NAME', such as 'osmosis/tiny:{path}').",
            hint=f"`osmosis model deploy {path}` prints its model_path",
        )
    suggestions = [
        f"'{name}/{model if slash and model else '<model>'}'"
        for name in difflib.get_close_matches(provider.lower(), sorted(_providers()), n=2, cutoff=0.75)
    ]
    if suggestions:
        return OsmosisError(f"Unknown model: {path} (did you mean {' or '.join(suggestions)}?).")
    return OsmosisError(
        f"Unknown provider: {path} (a model is 'provider/model', such as 'openai/gpt-5-mini').",
        hint=f"for your own server use 'openai/{path or '<model>'}' and OPENAI_BASE_URL=http://localhost:8000/v1",
    )


def _providers() -> frozenset[str]:
    """Return the names of our providers and of LiteLLM's."""
    return frozenset(_PROVIDERS).union(
        litellm_table("provider_endpoints_support_backup").get("providers", ())
    )


@lru_cache
def litellm_table(name: str) -> Mapping[str, Mapping[str, Any]]:
    """Return a table of LiteLLM, read as a file (11 ms) because importing LiteLLM takes seconds."""
    from importlib.util import find_spec

    import orjson

    spec = find_spec("litellm")
    folder = Path(spec.origin or "").parent if spec else Path()
    try:
        table: dict[str, dict[str, Any]] = orjson.loads((folder / f"{name}.json").read_bytes())
    except (OSError, ValueError):
        return {}
    return table


# An address from a `.env` must not receive keys from another source. The command line pairs each address with the keys
# of the same file. A key may be added later (an option, a variable that a rubric names), so the code that combines an
# address and a key calls `refuse_redirect`.


@dataclass(frozen=True)
class FileAddress:
    """An address from a file, and the keys of that file, which may be sent to it."""

    value: str
    own: frozenset[str] = field(repr=False)
    path: Path


FILE_ADDRESSES: dict[str, FileAddress] = {}
"""The variables of this process that are addresses from a file."""


def refuse_redirect(variables: Iterable[str], env: Mapping[str, str], key: str | None) -> None:
    """Refuse to send ``key`` to an address from a file that does not contain the key."""
    for name in variables:
        address = FILE_ADDRESSES.get(name)
        if address is not None and env.get(name) == address.value and key and key not in address.own:
            raise address_conflict(name, address.path)


def address_conflict(name: str, path: Path, key: str = "a key", *, elsewhere: bool = False) -> ConflictError:
    """Return the error for an address whose file lacks its key, or whose key is also set ``elsewhere``."""
    return ConflictError(
        f"{name} in {path} is accepted only with {key} from the same file"
        + (f", and {key} is set outside that file." if elsewhere else "."),
        details={"variable": name, "key": key, "env_file": str(path)},
        hint="set the address and its key in one place: both in the file or both in the environment",
    )


def choose_endpoint(
    model: str, env: Mapping[str, str], *, base_url: str | None = None, api_key: str | None = None
) -> ModelEndpoint:
    """Return the endpoint that `--model`, `--base-url` and `--api-key` select together.

    With an address, the model's name is passed to its server unchanged, and no key is required. Without one, the
    model's name determines the provider, as in every other command.
    """
    name = model.strip()
    if not name:
        raise OsmosisError("--model is empty.", hint="for instance '--model openai/gpt-5-mini'")
    if base_url is not None:
        # Clients and proxies require a key.
        key = api_key or env.get("OPENAI_API_KEY", "").strip() or "no-key"
        return ModelEndpoint(
            name, "openai", name.removeprefix("openai/"), "openai", _checked_address(base_url), key
        )
    if "/" not in name and well_known_provider(name) is None:
        name = f"openai/{name}"
    if api_key:
        env = {**env, **dict.fromkeys(key_variables(split_model_path(name)[0])[:1], api_key)}
    return resolve_model(name, env)


def _checked_address(text: str) -> str:
    """Return the base URL of `--base-url`. It is stored with the run and shown in errors, so it must hold no secret."""
    address = text.strip()
    if any(character in text for character in "@?#") or _KEY_IN_A_PATH.search(text):
        raise OsmosisError(
            "--base-url must not contain a user name, password, key, query or fragment.",
            hint="set the key in OPENAI_API_KEY, and an address with a query in OPENAI_BASE_URL",
        )
    if http_address(address) is None or not address.isprintable() or " " in address:
        shown = "".join(character if character.isprintable() else "?" for character in text[:200])
        raise OsmosisError(
            f"--base-url is not an http(s) address: {shown}.",
            hint="for instance '--base-url http://localhost:8000/v1'",
        )
    return openai_base_url(address)
