"""Datasets and their upload."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from pydantic import AliasChoices, Field

from osmosis_ai.api.models.base import Page, Timestamp, WireModel


class DatasetCreateRequest(WireModel):
    """``file_name`` is the stem; ``file_size`` is in bytes."""

    file_name: str
    file_size: int
    extension: str
    overwrite_dataset_id: str | None = None


UPLOAD_INTENT_HEADER = "X-Osmosis-Upload"
_INTENT = re.compile(r"([0-9a-f]{32}); sha256=([0-9a-f]{64})")


@dataclass(frozen=True)
class UploadIntent:
    """A header that describes the file to send; the hosted service ignores it."""

    id: str
    sha256: str

    @property
    def header(self) -> str:
        return f"{self.id}; sha256={self.sha256}"

    @classmethod
    def of(cls, header: str | None) -> UploadIntent | None:
        """Parse the header; None if it is missing or invalid."""
        match = _INTENT.fullmatch(header or "")
        return None if match is None else cls(match[1], match[2])


class UploadPart(WireModel):
    part_number: int
    presigned_url: str = Field(repr=False)
    size: int | None = None


class CompletedPart(WireModel):
    PartNumber: int
    ETag: str


class UploadInstructions(WireModel):
    """The URL for PUT: one URL (``simple``) or one per part (``multipart``)."""

    method: str = "simple"
    presigned_url: str | None = Field(None, repr=False)
    upload_headers: dict[str, str] = {}
    expires_in: int | float | None = None
    part_size: int | None = None
    total_parts: int | None = None
    presigned_urls: list[UploadPart] = []
    s3_key: str | None = None
    upload_id: str | None = None
    received_parts: list[CompletedPart] = []


class Dataset(WireModel):
    """``status``: pending, uploading, processing, uploaded, error, cancelled."""

    id: str
    file_name: str | None = None
    file_size: int = 0
    status: str = ""
    file_format: str | None = None
    original_file_format: str | None = None
    row_count: int | None = None
    original_file_size: int | None = None
    data_preview: Any = None
    creator_name: str | None = None
    created_at: Timestamp | None = None
    updated_at: Timestamp | None = None
    platform_url: str | None = None
    is_internal_user: bool = False
    upload: UploadInstructions | None = None
    upload_error: str | None = None

    def printed(self) -> dict[str, Any]:
        hidden = {"data_preview", "is_internal_user", "upload", "upload_error"}
        return self.model_dump(
            mode="json", exclude=hidden if self.platform_url else {*hidden, "platform_url"}
        )


class DatasetCompleteRequest(WireModel):
    file_extension: str
    parts: list[CompletedPart] | None = None


class DatasetList(Page[Dataset]):
    items: list[Dataset] = Field(alias="datasets")


class DatasetDownload(WireModel):
    presigned_url: str = Field(validation_alias=AliasChoices("presigned_url", "presignedUrl"), repr=False)
    expires_in: int | float | None = Field(None, validation_alias=AliasChoices("expires_in", "expiresIn"))
    file_name: str | None = Field(
        None, validation_alias=AliasChoices("file_name", "fileName", "download_file_name", "downloadFileName")
    )
