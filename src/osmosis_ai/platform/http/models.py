"""Models: the base models this platform itself runs, and the LoRA adapters trained on them.

A model of a provider needs no listing: any ``provider/model`` can be named in a config. That there are no
deployment fields tells clients that adapters cannot be served here.
"""

from __future__ import annotations

from osmosis_ai.api.wire import models as wire
from osmosis_ai.platform.http.errors import ApiError
from osmosis_ai.platform.http.paging import Paging
from osmosis_ai.platform.http.routing import api_router
from osmosis_ai.platform.http.scope import Services, WorkspaceScope

router = api_router("/api/cli/models")


@router.get("/base")
def list_base_models(services: Services, _scope: WorkspaceScope, page: Paging) -> wire.BaseModelList:
    """List the models that need no provider and no key."""
    names = services.served.models
    shown = names[page.offset : page.offset + page.limit]
    return wire.BaseModelList(
        models=[
            wire.BaseModelRow(id=name, model_name=name, base_model=name, creator_name="Osmosis")
            for name in shown
        ],
        **page.keys(len(names), len(shown)),
    )


@router.get("/lora")
def list_lora_models(_scope: WorkspaceScope, page: Paging) -> wire.LoraModelList:
    """List the adapters of the workspace."""
    return wire.LoraModelList(models=[], **page.keys(0, 0))


@router.get("/{name}")
def get_lora_model(_scope: WorkspaceScope, name: str) -> wire.LoraModel:
    """Show one adapter."""
    raise _unknown(name)


@router.post("/{name}/deploy")
def deploy_lora_model(_scope: WorkspaceScope, name: str) -> wire.DeploymentChange:
    """Start serving an adapter."""
    raise _unknown(name)


@router.post("/{name}/undeploy")
def undeploy_lora_model(_scope: WorkspaceScope, name: str) -> wire.DeploymentChange:
    """Stop serving an adapter."""
    raise _unknown(name)


def _unknown(name: str) -> ApiError:
    return ApiError(404, "MODEL_NOT_FOUND", f"there is no LoRA model '{name[:255]}' in this workspace.")
