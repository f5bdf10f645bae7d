"""Base models that the platform can run, and the LoRA adapters trained on them."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from osmosis_ai.api.models.base import Page, Timestamp, WireModel


class BaseModelRow(WireModel):
    id: str
    model_name: str | None = None
    base_model: str | None = None
    creator_name: str | None = None
    created_at: Timestamp | None = None
    updated_at: Timestamp | None = None


class BaseModelList(Page[BaseModelRow]):
    items: list[BaseModelRow] = Field(alias="models")


class LoraModel(WireModel):
    """A trained adapter. Without ``deployment_status``, the platform offers no inference."""

    id: str
    model_name: str | None = None
    base_model: str | None = None
    training_run_name: str | None = None
    checkpoint_step: int | None = None
    reward: float | None = None
    validation_reward: float | None = None
    created_at: Timestamp | None = None
    deployment_status: str | None = None
    deployed_at: Timestamp | None = None
    deployed_by: str | None = None
    hf_upload_status: str | None = None
    hf_url: str | None = None
    uploaded_by: str | None = None
    inference_model: str | None = None
    platform_url: str | None = None
    is_internal_user: bool = False

    @property
    def can_be_deployed(self) -> bool:
        """Whether the platform can serve it: only then does its reply contain a status, even if null."""
        return "deployment_status" in self.model_fields_set

    def printed(self, *, in_list: bool = False) -> dict[str, Any]:
        hidden = {"platform_url", "is_internal_user"}
        if in_list:
            hidden |= {"hf_upload_status", "hf_url", "uploaded_by", "inference_model"}
        if not self.can_be_deployed:
            hidden |= {"deployment_status", "deployed_at", "deployed_by"}
        return self.model_dump(mode="json", exclude=hidden)


class LoraModelList(Page[LoraModel]):
    items: list[LoraModel] = Field(alias="models")
    active_deployments: int | None = None
    max_active_deployments: int | None = None


class DeploymentChange(WireModel):
    id: str
    model_name: str | None = None
    status: str | None = None


class ModelFile(WireModel):
    """A file of an adapter and its temporary URL; ``size`` in bytes, ``sha256`` in hex."""

    path: str
    size: int = Field(strict=True, ge=0)
    sha256: str | None = None
    url: str = Field(repr=False)


class ModelDownload(WireModel):
    """All files of an adapter folder in PEFT's layout; only on our platform."""

    model_name: str
    base_model: str | None = None
    files: list[ModelFile] = []
    expires_in: int | float | None = None
