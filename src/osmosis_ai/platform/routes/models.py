"""Models: base models that the platform serves, and LoRA adapters that were trained on it."""

from __future__ import annotations

from typing import Any

from anyio import from_thread

from osmosis_ai.api.models import models as wire
from osmosis_ai.errors import NotFoundError
from osmosis_ai.platform.http.addresses import page_url
from osmosis_ai.platform.http.authentication import Scope, Services, WorkspaceScope
from osmosis_ai.platform.http.errors import ApiError, as_sentence
from osmosis_ai.platform.http.paging import Paging
from osmosis_ai.platform.http.routing import api_router
from osmosis_ai.platform.models import LINK_TTL, MAX_ACTIVE_DEPLOYMENTS, DeploymentLimitError, FoundLoraModel
from osmosis_ai.platform.routes.runs import present
from osmosis_ai.platform.runs.requests import is_servable
from osmosis_ai.platform.services import PlatformServices

router = api_router("/api/cli/models")


@router.get("/base")
def list_base_models(services: Services, _scope: WorkspaceScope, page: Paging) -> wire.BaseModelList:
    """List the built-in models, which need no API key."""
    names = services.model_servers.models
    shown = names[page.offset : page.offset + page.limit]
    return wire.BaseModelList(
        models=[
            wire.BaseModelRow(id=name, model_name=name, base_model=name, creator_name="Osmosis")
            for name in shown
        ],
        **page.keys(len(names), len(shown)),
    )


@router.get("/lora")
def list_lora_models(services: Services, scope: WorkspaceScope, page: Paging) -> wire.LoraModelList:
    """List the adapters of the workspace, newest first."""
    found, total, active = services.lora_models.offset_page(
        scope.workspace_id, limit=page.limit, offset=page.offset
    )
    return wire.LoraModelList(
        models=[wire.LoraModel(**_fields(each)) for each in found],
        active_deployments=active,
        max_active_deployments=MAX_ACTIVE_DEPLOYMENTS,
        **page.keys(total, len(found)),
    )


@router.get("/{name}")
def get_lora_model(services: Services, scope: WorkspaceScope, name: str) -> wire.LoraModel:
    """Return one adapter."""
    found = _find(services, scope, name)
    fields = {
        **_fields(found),
        "platform_url": page_url(services, scope.workspace, "models", found.model.name),
    }
    if _can_be_served(found):
        fields["inference_model"] = found.inference_name
    return wire.LoraModel(**fields)


@router.get("/{name}/download")
def download_lora_model(services: Services, scope: WorkspaceScope, name: str) -> wire.ModelDownload:
    """Return download URLs for the files of an adapter."""
    model = _find(services, scope, name).model
    return wire.ModelDownload(
        model_name=model.name,
        base_model=model.base_model,
        files=services.lora_models.files(model),
        expires_in=int(LINK_TTL.total_seconds()),
    )


@router.post("/{name}/deploy")
def deploy_lora_model(services: Services, scope: WorkspaceScope, name: str) -> wire.DeploymentChange:
    """Start serving an adapter."""
    found = _find(services, scope, name)
    if not _can_be_served(found):
        raise ApiError(
            409,
            "CONFLICT",
            f"this platform cannot serve '{found.model.name}': its base model `{found.model.base_model}` requires torch.",
            field="loraName",
        )
    try:
        model = services.lora_models.deploy(scope.workspace_id, name, scope.user)
    except DeploymentLimitError as error:
        raise ApiError(409, "CONFLICT", error.message, field="loraName") from None
    return wire.DeploymentChange(id=model.id, model_name=model.name, status="active")


@router.post("/{name}/undeploy")
def undeploy_lora_model(services: Services, scope: WorkspaceScope, name: str) -> wire.DeploymentChange:
    """Stop serving an adapter. Only an admin or owner can undeploy another user's deployment."""
    model = _find(services, scope, name).model
    if model.deployment_status == "active" and model.deployer_id != scope.user.id:
        scope.require_role("admin")
    model = services.lora_models.undeploy(scope.workspace_id, name)
    # Routes run in threads of the event loop that the processes belong to.
    from_thread.run_sync(services.model_servers.withdraw, model.id)
    return wire.DeploymentChange(id=model.id, model_name=model.name, status="inactive")


def _find(services: PlatformServices, scope: Scope, name: str) -> FoundLoraModel:
    try:
        return services.lora_models.get(scope.workspace_id, name)
    except NotFoundError as error:
        raise ApiError(404, "MODEL_NOT_FOUND", as_sentence(error)) from None


def _can_be_served(found: FoundLoraModel) -> bool:
    return is_servable(found.model.base_model)


def _fields(found: FoundLoraModel) -> dict[str, Any]:
    model = found.model
    fields = present(
        {
            "id": model.id,
            "model_name": model.name,
            "base_model": model.base_model,
            "training_run_name": found.run_name,
            "checkpoint_step": model.step,
            "reward": model.reward,
            "validation_reward": model.validation_reward,
            "created_at": model.created_at,
        }
    )
    if _can_be_served(found):
        # Null means "never deployed"; a missing key means "cannot be served here".
        fields["deployment_status"] = model.deployment_status
        fields |= present({"deployed_at": model.deployed_at, "deployed_by": found.deployed_by})
    return fields
