"""Bytes to and from signed URLs: resumed where they broke off, and whole or not there at all."""

from osmosis_ai.api.transfer.download import Download, download
from osmosis_ai.api.transfer.store import BlobClient, TransferError
from osmosis_ai.api.transfer.unfinished import UnfinishedUpload, find_unfinished_upload
from osmosis_ai.api.transfer.upload import Upload, upload_file

__all__ = [
    "BlobClient",
    "Download",
    "TransferError",
    "UnfinishedUpload",
    "Upload",
    "download",
    "find_unfinished_upload",
    "upload_file",
]
