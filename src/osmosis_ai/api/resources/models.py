"""Models: what the platform can run, and adapters trained on it."""

from __future__ import annotations

from osmosis_ai.api import routes
from osmosis_ai.api.resources.resource import LARGEST_PAGE, Resource
from osmosis_ai.api.retrying import REPEATING
from osmosis_ai.api.wire.models import (
    BaseModelList,
    DeploymentChange,
    LoraModel,
    LoraModelList,
    ModelDownload,
)


class Models(Resource):
    """Base models and LoRA adapters of the repository's workspace."""

    def list_base(self, *, limit: int = LARGEST_PAGE, offset: int = 0) -> BaseModelList:
        """Return one page of the models that can be evaluated and trained."""
        return self._page(routes.BASE_MODELS, model=BaseModelList, limit=limit, offset=offset)

    def list_lora(self, *, limit: int = LARGEST_PAGE, offset: int = 0) -> LoraModelList:
        """Return one page of trained adapters."""
        return self._page(routes.LORA_MODELS, model=LoraModelList, limit=limit, offset=offset)

    def get(self, name: str) -> LoraModel:
        """Return one adapter."""
        return self._client.get(routes.model(name), model=LoraModel)

    def deploy(self, name: str) -> DeploymentChange:
        """Serve an adapter; doing so twice changes nothing."""
        return self._client.post(routes.model_deploy(name), None, model=DeploymentChange, retry=REPEATING)

    def undeploy(self, name: str) -> DeploymentChange:
        """Serve an adapter no longer; doing so twice changes nothing."""
        return self._client.post(routes.model_undeploy(name), None, model=DeploymentChange, retry=REPEATING)

    def download(self, name: str) -> ModelDownload:
        """Return where the files of an adapter can be had for a while."""
        return self._client.get(routes.model_download(name), model=ModelDownload)
