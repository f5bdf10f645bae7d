"""Resolve a model's name to its provider, address, key and protocol.

Providers that speak OpenAI's protocol are called directly; the table has their addresses and the variables of their
keys and addresses, by LiteLLM's names. Every other provider is called through LiteLLM. Only
:attr:`ModelEndpoint.api_key` contains a key, and it is never printed.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Literal
from urllib.parse import unquote_plus, urlsplit

from osmosis_ai.errors import OsmosisError
from osmosis_ai.llm.file_addresses import refuse_redirect
from osmosis_ai.llm.transport import openai_base_url

Transport = Literal["openai", "litellm"]


@dataclass(frozen=True)
class Provider:
    """A provider that speaks OpenAI's protocol."""

    base_url: str | None
    keys: tuple[str, ...]
    bases: tuple[str, ...]
    needs_key: bool = True
    local: bool = False
    path: str = ""
    model_prefix: str = ""
    renames: Mapping[str, str] = field(default_factory=dict)


def _ollama() -> Provider:
    return Provider(
        "http://localhost:11434/v1",
        ("OLLAMA_API_KEY",),
        ("OLLAMA_API_BASE",),
        needs_key=False,
        local=True,
        path="/v1",
    )


OPENAI_COMPATIBLE: dict[str, Provider] = {
    "openai": Provider(
        "https://api.openai.com/v1", ("OPENAI_API_KEY",), ("OPENAI_BASE_URL", "OPENAI_API_BASE")
    ),
    "hosted_vllm": Provider(
        None, ("HOSTED_VLLM_API_KEY",), ("HOSTED_VLLM_API_BASE",), needs_key=False, local=True
    ),
    "ollama": _ollama(),
    "ollama_chat": _ollama(),
    "lm_studio": Provider(
        "http://localhost:1234/v1",
        ("LM_STUDIO_API_KEY",),
        ("LM_STUDIO_API_BASE",),
        needs_key=False,
        local=True,
    ),
    "llamafile": Provider(
        "http://127.0.0.1:8080/v1",
        ("LLAMAFILE_API_KEY",),
        ("LLAMAFILE_API_BASE",),
        needs_key=False,
        local=True,
    ),
    "openrouter": Provider(
        "https://openrouter.ai/api/v1", ("OPENROUTER_API_KEY", "OR_API_KEY"), ("OPENROUTER_API_BASE",)
    ),
    "groq": Provider("https://api.groq.com/openai/v1", ("GROQ_API_KEY",), ("GROQ_API_BASE",)),
    "deepseek": Provider("https://api.deepseek.com/v1", ("DEEPSEEK_API_KEY",), ("DEEPSEEK_API_BASE",)),
    "together_ai": Provider(
        "https://api.together.xyz/v1",
        ("TOGETHERAI_API_KEY", "TOGETHER_API_KEY", "TOGETHER_AI_API_KEY"),
        ("TOGETHER_AI_API_BASE",),
    ),
    "fireworks_ai": Provider(
        "https://api.fireworks.ai/inference/v1",
        ("FIREWORKS_AI_API_KEY", "FIREWORKS_API_KEY", "FIREWORKSAI_API_KEY"),
        ("FIREWORKS_API_BASE",),
        model_prefix="accounts/fireworks/models/",
    ),
    "mistral": Provider(
        "https://api.mistral.ai/v1",
        ("MISTRAL_API_KEY",),
        ("MISTRAL_API_BASE",),
        renames={"seed": "random_seed", "max_completion_tokens": "max_tokens"},
    ),
    "xai": Provider("https://api.x.ai/v1", ("XAI_API_KEY",), ("XAI_API_BASE",)),
    "cerebras": Provider("https://api.cerebras.ai/v1", ("CEREBRAS_API_KEY",), ("CEREBRAS_API_BASE",)),
    "perplexity": Provider(
        "https://api.perplexity.ai", ("PERPLEXITYAI_API_KEY", "PERPLEXITY_API_KEY"), ("PERPLEXITY_API_BASE",)
    ),
    "deepinfra": Provider(
        "https://api.deepinfra.com/v1/openai", ("DEEPINFRA_API_KEY",), ("DEEPINFRA_API_BASE",)
    ),
    "nvidia_nim": Provider(
        "https://integrate.api.nvidia.com/v1", ("NVIDIA_NIM_API_KEY",), ("NVIDIA_NIM_API_BASE",)
    ),
    "sambanova": Provider("https://api.sambanova.ai/v1", ("SAMBANOVA_API_KEY",), ("SAMBANOVA_API_BASE",)),
    "nebius": Provider("https://api.studio.nebius.ai/v1", ("NEBIUS_API_KEY",), ("NEBIUS_API_BASE",)),
    "hyperbolic": Provider(
        "https://api.hyperbolic.xyz/v1", ("HYPERBOLIC_API_KEY",), ("HYPERBOLIC_API_BASE",)
    ),
    "novita": Provider("https://api.novita.ai/v3/openai", ("NOVITA_API_KEY",), ("NOVITA_API_BASE",)),
    "litellm_proxy": Provider(None, ("LITELLM_PROXY_API_KEY",), ("LITELLM_PROXY_API_BASE",)),
}

# Providers called through LiteLLM whose key is one variable. The others find their credentials themselves (AWS
# profiles, application default credentials ...), so only the preflight detects missing ones.
LITELLM_KEYS: dict[str, tuple[str, ...]] = {
    "anthropic": ("ANTHROPIC_API_KEY",),
    "gemini": ("GEMINI_API_KEY", "GOOGLE_API_KEY"),
    "azure": ("AZURE_API_KEY",),
    "azure_ai": ("AZURE_AI_API_KEY",),
    "cohere": ("COHERE_API_KEY", "CO_API_KEY"),
    "cohere_chat": ("COHERE_API_KEY", "CO_API_KEY"),
    "huggingface": ("HF_TOKEN", "HUGGINGFACE_API_KEY"),
    "replicate": ("REPLICATE_API_KEY", "REPLICATE_API_TOKEN"),
    "ai21": ("AI21_API_KEY",),
    "moonshot": ("MOONSHOT_API_KEY",),
    "dashscope": ("DASHSCOPE_API_KEY",),
}
_LITELLM_BASES = {
    "azure": "AZURE_API_BASE",
    "azure_ai": "AZURE_AI_API_BASE",
    "anthropic": "ANTHROPIC_API_BASE",
}
# LiteLLM looks up these clouds' credentials and addresses itself.
_CLOUD_CREDENTIALS = frozenset(
    {
        *("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_BEARER_TOKEN_BEDROCK"),
        *("AZURE_AD_TOKEN", "AZURE_CLIENT_SECRET"),
    }
)
_AZURE_KEYS = ("AZURE_API_KEY", "AZURE_AD_TOKEN", "AZURE_CLIENT_SECRET")
CLOUD_SETTINGS = frozenset(
    {
        *("AWS_REGION", "AWS_REGION_NAME", "AWS_DEFAULT_REGION"),
        *("AZURE_API_VERSION", "AZURE_TENANT_ID", "AZURE_CLIENT_ID"),
    }
)
"""Settings that are part of an address at the cloud's own host."""
_KEYLESS_BY_OTHER_MEANS = frozenset({"azure"})  # Entra ID tokens
_LITELLM_MACHINERY = frozenset(
    {"__pycache__", "base_llm", "custom_httpx", "deprecated_providers", "pass_through"}
)

_BARE_NAMES = (
    (re.compile(r"(gpt|chatgpt|o[134]|o\d+-(mini|pro|preview)|codex)(-|$)"), "openai"),
    (re.compile(r"claude-"), "anthropic"),
    (re.compile(r"(gemini|gemma)-"), "gemini"),
    (re.compile(r"grok-"), "xai"),
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
    transport: Transport
    base_url: str | None
    api_key: str | None = field(default=None, repr=False)

    @property
    def secrets(self) -> tuple[str, ...]:
        """The values to redact: the key, and values in the address's query whose names mark them as keys."""
        pairs = [pair.partition("=") for pair in urlsplit(self.base_url or "").query.split("&")]
        raw = [
            value for name, _, value in pairs if _SECRET_NAME.search(unquote_plus(name)) and len(value) >= 6
        ]
        return tuple(filter(None, [self.api_key, *raw, *map(unquote_plus, raw)]))

    @property
    def limiter_key(self) -> str:
        """Identifies a rate limit: the provider's address and account."""
        account = hashlib.sha256((self.api_key or "").encode()).hexdigest()[:12]
        return f"{self.provider}|{self.base_url or ''}|{account}"

    @property
    def renames(self) -> Mapping[str, str]:
        """Parameters that the provider knows under another name."""
        known = OPENAI_COMPATIBLE.get(self.provider)
        return known.renames if known and self.transport == "openai" else {}


def resolve_model(
    model_path: str,
    env: Mapping[str, str],
    *,
    served: Mapping[str, tuple[str, str | None]] | None = None,
) -> ModelEndpoint:
    """Find the provider of ``model_path``."""
    path = model_path.strip()
    if served and path in served:
        base_url, api_key = served[path]
        return ModelEndpoint(path, "osmosis", path.partition("/")[2], "openai", base_url, api_key)
    provider, model = split_model_path(path, served=served)
    resolve = _resolve_compatible if provider in OPENAI_COMPATIBLE else _resolve_litellm
    endpoint = resolve(path, provider, model, env)
    refuse_redirect(address_variables_of(provider), env, endpoint.api_key)
    return endpoint


def split_model_path(path: str, *, served: Mapping[str, object] | None = None) -> tuple[str, str]:
    """Split a model's name into provider and model; without a provider, it must be a well-known name."""
    served = served or {}
    provider, slash, model = path.partition("/")
    if not slash:
        for pattern, inferred in _BARE_NAMES:
            if pattern.match(path):
                return inferred, path
        raise _unknown_name(path, served)
    if not model or any(character.isspace() for character in path):
        raise _unknown_name(path, served)
    if provider == "osmosis" or not is_provider(provider):
        raise _unknown_name(path, served)
    return provider, model


def is_provider(name: str) -> bool:
    """Tell whether ``name`` is a provider that can be called."""
    return name in OPENAI_COMPATIBLE or name in _litellm_providers()


def key_variables(provider: str) -> tuple[str, ...]:
    """Return the variables that may contain the provider's key, the usual one first; empty if it needs no single key."""
    known = OPENAI_COMPATIBLE.get(provider)
    return known.keys if known else LITELLM_KEYS.get(provider, ())


def credential_variables() -> frozenset[str]:
    """Return every variable that contains a provider's credential."""
    compatible = (name for provider in OPENAI_COMPATIBLE.values() for name in provider.keys)
    through_litellm = (name for names in LITELLM_KEYS.values() for name in names)
    return frozenset({*compatible, *through_litellm, *_CLOUD_CREDENTIALS})


def address_variables() -> dict[str, tuple[str, ...]]:
    """Return every variable with a provider's address, and the variables with the credentials sent there."""
    found = {base: provider.keys for provider in OPENAI_COMPATIBLE.values() for base in provider.bases}
    found |= {base: LITELLM_KEYS.get(name, ()) for name, base in _LITELLM_BASES.items()}
    return found | {base: (*found[base], *_AZURE_KEYS) for base in ("AZURE_API_BASE", "AZURE_AI_API_BASE")}


def keyless_address_variables() -> frozenset[str]:
    """Return the address variables of providers that need no key."""
    return frozenset(
        base for provider in OPENAI_COMPATIBLE.values() if not provider.needs_key for base in provider.bases
    )


def address_variables_of(provider: str) -> tuple[str, ...]:
    """Return the address variables of one provider."""
    known = OPENAI_COMPATIBLE.get(provider)
    if known is not None:
        return known.bases
    # LiteLLM has variants such as `azure_text` and `text-completion-openai`.
    return tuple(base for base in address_variables() if base.partition("_")[0].lower() in provider)


def compatible_base_url(name: str, env: Mapping[str, str]) -> str | None:
    """Return the address of a provider that speaks OpenAI's protocol: its variable's, otherwise its default."""
    provider = OPENAI_COMPATIBLE[name]
    given = _first(env, provider.bases)
    return _base_url(given, provider) if given else provider.base_url


def _resolve_compatible(path: str, name: str, model: str, env: Mapping[str, str]) -> ModelEndpoint:
    provider = OPENAI_COMPATIBLE[name]
    base_url = compatible_base_url(name, env)
    if base_url is None:
        raise OsmosisError(
            f"`{path}` needs the address of its server, and `{provider.bases[0]}` is not set.",
            hint=f"export {provider.bases[0]}=http://localhost:8000/v1",
        )
    key = _first(env, provider.keys)
    # The user's own server with the provider's protocol rarely requires a key; the preflight checks.
    if key is None and provider.needs_key and base_url == provider.base_url:
        raise _missing_key(path, provider.keys)
    if provider.model_prefix and "/" not in model:
        model = provider.model_prefix + model
    return ModelEndpoint(path, name, model, "openai", base_url, key)


def _resolve_litellm(path: str, name: str, model: str, env: Mapping[str, str]) -> ModelEndpoint:
    variables = LITELLM_KEYS.get(name, ())
    key = _first(env, variables)
    if variables and key is None and name not in _KEYLESS_BY_OTHER_MEANS:
        raise _missing_key(path, variables)
    base_url = env.get(_LITELLM_BASES.get(name, ""), "").strip() or None
    return ModelEndpoint(path, name, model, "litellm", base_url, key)


def _base_url(value: str, provider: Provider) -> str:
    parts = urlsplit(value)
    variable = provider.bases[0]
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise OsmosisError(
            f"`{variable}` is not an http(s) address.", hint=f"export {variable}=http://localhost:8000/v1"
        )
    if parts.username or parts.password:
        raise OsmosisError(
            f"`{variable}` holds a user name or password; put the key in `{provider.keys[0]}` instead.",
            hint=f"export {provider.keys[0]}=...",
        )
    return openai_base_url(value, provider.path)


def _first(env: Mapping[str, str], names: tuple[str, ...]) -> str | None:
    """Return the value of the first of ``names`` that is set and not empty."""
    return next((value for name in names if (value := env.get(name, "").strip())), None)


def _missing_key(path: str, variables: tuple[str, ...]) -> OsmosisError:
    return OsmosisError(
        f"`{path}` needs a key, and `{variables[0]}` is not set.",
        hint=f"export {variables[0]}=...",
        details={"missing_variable": variables[0]},
    )


def _unknown_name(path: str, served: Mapping[str, object]) -> OsmosisError:
    provider, slash, model = path.partition("/")
    if provider == "osmosis" and slash:
        if not served:
            return OsmosisError(f"a built-in model such as `{path}` cannot be called here.")
        known = ", ".join(f"`{name}`" for name in served)
        return OsmosisError(f"there is no built-in model `{path}`; built in: {known}.")
    candidates = sorted({*OPENAI_COMPATIBLE, *_litellm_providers()})
    suggestions = [
        f"`{name}/{model}`" if slash and model else f"`{name}/<model>`"
        for name in difflib.get_close_matches(provider.lower(), candidates, n=2, cutoff=0.75)
    ]
    if suggestions:
        return OsmosisError(f"`{path}` names no known model; did you mean {' or '.join(suggestions)}?")
    return OsmosisError(
        f"`{path}` names no known provider; a model is written `provider/model`, "
        "for instance `openai/gpt-5-mini` or `anthropic/claude-sonnet-4-5`.",
        hint=f"for a server of your own that speaks OpenAI's protocol (vLLM, SGLang ...): "
        f"`openai/{path or '<model>'}` with `export OPENAI_BASE_URL=http://localhost:8000/v1`",
    )


@lru_cache(maxsize=1)
def _litellm_providers() -> frozenset[str]:
    """Return LiteLLM's chat providers, read from its files because importing it is slow."""
    folder = litellm_folder()
    if folder is None:
        return frozenset(LITELLM_KEYS)
    names = {entry.name for entry in (folder / "llms").iterdir() if entry.is_dir()} - _LITELLM_MACHINERY
    try:
        listed = json.loads((folder / "provider_endpoints_support_backup.json").read_text("utf-8"))
        names |= set(listed["providers"])
    except (OSError, ValueError, KeyError, TypeError):
        pass  # the folders name the most used ones
    return frozenset(names | set(LITELLM_KEYS))


def litellm_folder() -> Path | None:
    """Return the folder of LiteLLM without importing it."""
    from importlib.util import find_spec

    spec = find_spec("litellm")
    locations = spec.submodule_search_locations if spec else None
    return Path(next(iter(locations))) if locations else None
