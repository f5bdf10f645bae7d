"""Transfers to and from signed URLs: resumable, and complete or absent."""

from osmosis_ai.api.transfer.client import BlobClient, TransferError
from osmosis_ai.api.transfer.download import Download, download
from osmosis_ai.api.transfer.unfinished import (
    NotedIntent,
    UnfinishedUpload,
    find_unfinished_upload,
    note_intent,
)
from osmosis_ai.api.transfer.upload import Upload, upload_file

__all__ = [
    "BlobClient",
    "Download",
    "NotedIntent",
    "TransferError",
    "UnfinishedUpload",
    "Upload",
    "download",
    "find_unfinished_upload",
    "note_intent",
    "upload_file",
]
