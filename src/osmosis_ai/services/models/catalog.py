"""Models of the platform: base models, and the adapters that training runs have saved."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from osmosis_ai.api.client import PlatformClient
    from osmosis_ai.api.wire.models import BaseModelRow, DeploymentChange, LoraModel
    from osmosis_ai.services.listing import Listing

INFERENCE_PATH = "/v1/chat/completions"
HOSTED_INFERENCE_URL = "https://inference.osmosis.ai"

_T = TypeVar("_T")


@dataclass(frozen=True)
class Deployments:
    """How many adapters are deployed, and may be; ``active`` is None where inference is not offered."""

    active: int | None = None
    maximum: int | None = None

    def data(self) -> dict[str, Any]:
        """Return what scripts see; nothing where inference is not offered."""
        if self.active is None:
            return {}
        return {"active_deployments": self.active, "max_active_deployments": self.maximum}


def list_base_models(client: PlatformClient, *, limit: int, everything: bool) -> Listing[BaseModelRow]:
    """Return the models that can be evaluated and trained; arguments as in ``fetch_listing``."""
    from osmosis_ai.services.listing import fetch_listing

    return fetch_listing(
        lambda size, offset: client.models.list_base(limit=size, offset=offset),
        lambda page: page.models,
        limit=limit,
        everything=everything,
    )


def list_lora_models(
    client: PlatformClient, *, limit: int, everything: bool
) -> tuple[Listing[LoraModel], Deployments]:
    """Return the adapters, and how many are deployed; arguments as in ``fetch_listing``."""
    from osmosis_ai.services.listing import fetch_listing

    deployments = Deployments()

    def fetch(size: int, offset: int) -> Any:
        nonlocal deployments
        page = client.models.list_lora(limit=size, offset=offset)
        if "active_deployments" in page.model_fields_set:
            deployments = Deployments(page.active_deployments or 0, page.max_active_deployments)
        return page

    listing: Listing[LoraModel] = fetch_listing(
        fetch, lambda page: page.models, limit=limit, everything=everything
    )
    return listing, deployments


def get_lora_model(client: PlatformClient, name: str) -> LoraModel:
    """Return an adapter.

    Raises:
        PlatformError: there is none of that name, or as every call.
    """
    return ask_by_name(client, name, client.models.get)


def deploy(client: PlatformClient, name: str) -> DeploymentChange:
    """Have an adapter served; doing so twice changes nothing.

    Raises:
        PlatformError: there is none, it cannot be served, or too many are; or as every call.
    """
    return ask_by_name(client, name, client.models.deploy)


def undeploy(client: PlatformClient, name: str) -> DeploymentChange:
    """Have an adapter served no longer; doing so twice changes nothing.

    Raises:
        PlatformError: there is none, or it is not this user's to take back; or as every call.
    """
    return ask_by_name(client, name, client.models.undeploy)


def ask_by_name(client: PlatformClient, name: str, ask: Callable[[str], _T]) -> _T:
    """Return what the platform answers about an adapter, which may be called ``BASE:NAME`` as its endpoint calls it.

    A platform's own names may have colons, so a name is shortened only when there is none of it, and only to that
    of an adapter of this very base model.

    Args:
        client: the platform.
        name: the adapter's name or id, or ``BASE:NAME``.
        ask: the call that takes the name.

    Raises:
        PlatformError: there is none of that name, or as ``ask``.
    """
    from osmosis_ai.api.http_errors import PlatformError

    try:
        return ask(name)
    except PlatformError as error:
        short = _name_without_base(client, name) if error.status == 404 else None
        if short is None:
            raise
    return ask(short)


def can_be_deployed(model: LoraModel) -> bool:
    """Tell whether the platform offers to serve an adapter: only then does it say a status, if a null one."""
    return "deployment_status" in model.model_fields_set


def inference_url(platform_url: str) -> str:
    """Return where deployed adapters answer: the hosted platform has a host for it, others do it themselves.

    ``OSMOSIS_INFERENCE_URL`` overrides it.
    """
    import os

    from osmosis_ai.api.platform_url import DEFAULT_PLATFORM_URL, INFERENCE_URL_ENV

    hosted = HOSTED_INFERENCE_URL if platform_url == DEFAULT_PLATFORM_URL else platform_url
    return f"{(os.environ.get(INFERENCE_URL_ENV) or hosted).rstrip('/')}{INFERENCE_PATH}"


def base_item(model: BaseModelRow) -> dict[str, Any]:
    """Return a base model as scripts see it."""
    return model.model_dump(mode="json")


def lora_item(model: LoraModel) -> dict[str, Any]:
    """Return a listed adapter as scripts see it."""
    known = model.model_dump(mode="json")
    deployment = ("deployment_status", "deployed_at", "deployed_by") if can_be_deployed(model) else ()
    keys = (
        *("id", "model_name", "base_model", "training_run_name", "checkpoint_step"),
        *("reward", "validation_reward"),
        *deployment,
        "created_at",
    )
    return {key: known[key] for key in keys}


def lora_detail(model: LoraModel) -> dict[str, Any]:
    """Return an adapter in full as scripts see it."""
    known = model.model_dump(mode="json")
    more = ("hf_upload_status", "hf_url", "uploaded_by", "inference_model")
    return {**lora_item(model), **{key: known[key] for key in more}}


def _name_without_base(client: PlatformClient, name: str) -> str | None:
    from osmosis_ai.api.http_errors import PlatformError

    base, _, short = name.rpartition(":")
    if not base or not short:
        return None
    try:
        found = client.models.get(short)
    except PlatformError as error:
        if error.status == 404:
            return None
        raise
    return short if name == found.inference_model or base == found.base_model else None
