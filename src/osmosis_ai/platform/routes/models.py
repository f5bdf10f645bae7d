"""Models: base models that the platform serves, and LoRA adapters that were trained on it."""

from __future__ import annotations

from typing import Any

from anyio import from_thread

from osmosis_ai.api.models import models as wire
from osmosis_ai.errors import NotFoundError
from osmosis_ai.platform.db.tables import DbLoraModel
from osmosis_ai.platform.http.authentication import Scope, Services, WorkspaceScope
from osmosis_ai.platform.http.errors import ApiError, as_sentence
from osmosis_ai.platform.http.routing import Paging, api_router, page_url
from osmosis_ai.platform.models import LINK_TTL, MAX_ACTIVE_DEPLOYMENTS
from osmosis_ai.platform.runs.requests import is_servable
from osmosis_ai.platform.services import PlatformServices

router = api_router("/api/cli/models")


@router.get("/base")
def list_base_models(services: Services, _scope: WorkspaceScope, page: Paging) -> wire.BaseModelList:
    """List the built-in models, which need no API key."""
    names = services.model_servers.models
    shown = names[page.offset : page.offset + page.limit]
    return wire.BaseModelList(models=list(map(_base_model, shown)), **page.keys(len(names), len(shown)))


@router.get("/base/{name:path}")
def get_base_model(services: Services, _scope: WorkspaceScope, name: str) -> wire.BaseModelRow:
    """Return one built-in model."""
    if name not in services.model_servers.models:
        raise ApiError(404, "MODEL_NOT_FOUND", f"there is no base model '{name[:200]}' here.")
    return _base_model(name)


@router.get("/lora")
def list_lora_models(services: Services, scope: WorkspaceScope, page: Paging) -> wire.LoraModelList:
    """List the adapters of the workspace, newest first."""
    found = services.lora_models.page(scope.workspace_id, limit=page.limit, offset=page.offset)
    return wire.LoraModelList(
        models=[_wire(model) for model in found.items],
        active_deployments=found.counts["deployed"],
        max_active_deployments=MAX_ACTIVE_DEPLOYMENTS,
        **page.keys(found.counts["total"], len(found.items)),
    )


@router.get("/{name}")
def get_lora_model(services: Services, scope: WorkspaceScope, name: str) -> wire.LoraModel:
    """Return one adapter."""
    model = _find(services, scope, name)
    served_as = model.inference_name if is_servable(model.base_model) else None
    page = page_url(services, scope.workspace, "models", model.name)
    return _wire(model, platform_url=page, inference_model=served_as)


@router.get("/{name}/download")
def download_lora_model(services: Services, scope: WorkspaceScope, name: str) -> wire.ModelDownload:
    """Return download URLs for the files of an adapter."""
    model = _find(services, scope, name)
    return wire.ModelDownload(
        model_name=model.name,
        base_model=model.base_model,
        files=services.lora_models.files(model),
        expires_in=int(LINK_TTL.total_seconds()),
    )


@router.post("/{name}/deploy")
def deploy_lora_model(services: Services, scope: WorkspaceScope, name: str) -> wire.DeploymentChange:
    """Start serving an adapter."""
    model = _find(services, scope, name)
    if not is_servable(model.base_model):
        raise ApiError(
            409,
            "CONFLICT",
            f"this platform cannot serve '{model.name}': its base model `{model.base_model}` requires torch.",
            field="loraName",
        )
    model = services.lora_models.deploy(scope.workspace_id, name, scope.user)
    return wire.DeploymentChange(id=model.id, model_name=model.name, status="active")


@router.post("/{name}/undeploy")
def undeploy_lora_model(services: Services, scope: WorkspaceScope, name: str) -> wire.DeploymentChange:
    """Stop serving an adapter. Only an admin or owner can undeploy another user's deployment."""
    model = _find(services, scope, name)
    if model.deployment_status == "active" and model.deployer_id != scope.user.id:
        scope.require_role("admin")
    model = services.lora_models.undeploy(scope.workspace_id, name)
    # Routes run in threads of the event loop that the processes belong to.
    from_thread.run_sync(services.model_servers.withdraw, model.id)
    return wire.DeploymentChange(id=model.id, model_name=model.name, status="inactive")


def _find(services: PlatformServices, scope: Scope, name: str) -> DbLoraModel:
    try:
        return services.lora_models.get(scope.workspace_id, name)
    except NotFoundError as error:
        raise ApiError(404, "MODEL_NOT_FOUND", as_sentence(error)) from None


def _base_model(name: str) -> wire.BaseModelRow:
    return wire.BaseModelRow(id=name, model_name=name, base_model=name, creator_name="Osmosis")


def _wire(model: DbLoraModel, **more: Any) -> wire.LoraModel:
    is_served = is_servable(model.base_model)
    hidden = () if is_served else ("deployment_status", "deployed_at", "deployed_by")
    names = {"model_name": model.name, "training_run_name": model.run_name, "checkpoint_step": model.step}
    reply = wire.LoraModel.of(model, nulls=False, **names, **dict.fromkeys(hidden), **more)
    if is_served:
        # Null means "never deployed"; a missing key means "cannot be served here".
        reply.deployment_status = model.deployment_status
    return reply
