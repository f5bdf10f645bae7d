"""What a worker knows of its platform: four exchanges, and bytes by signed URL. No database, no vault, no mirror."""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO, Protocol

from osmosis_ai.api.http_errors import PlatformError
from osmosis_ai.api.wire.workers import (
    Assignment,
    EndRequest,
    InputDownload,
    ReleaseRequest,
    RunClosed,
    SyncReply,
    SyncRequest,
    UploadGrant,
    WorkerOffer,
)
from osmosis_ai.errors import OsmosisError


class PlatformUnreachableError(OsmosisError):
    """The platform does not answer, or not in its right mind: the same again, a little later, may well do."""

    default_code = "NETWORK"
    is_infrastructure = True


class StoreAwayError(PlatformUnreachableError):
    """The store says nothing, is busy, or another stands in its place: it is waited for, however long that takes."""


class CredentialRefusedError(OsmosisError):
    """The platform does not take what this worker shows, or not from this release: it has to leave its run."""

    default_code = "AUTH_REQUIRED"


class NoPlatformError(OsmosisError):
    """What answers at the address is no platform that takes workers."""

    default_code = "PLATFORM_ERROR"

    def __init__(self) -> None:
        super().__init__(
            "no platform accepts workers at this address.",
            hint="give --url the address at which the platform's pages are, without a proxy that asks who you are",
        )


def held_at_most_s(term_s: float) -> float:
    """Return for how long a platform holds the answer to a sync that may wait, in seconds; ``term_s``: of its leases."""
    return term_s / 3


class PlatformLink(Protocol):
    """A way to the platform."""

    def claim(self, offer: WorkerOffer) -> Assignment | None:
        """Ask for a run; None when there is none for this worker."""
        ...

    def sync(self, run_id: str, request: SyncRequest) -> SyncReply:
        """Keep the lease, and hand over what is new; one that may wait is tried once."""
        ...

    def end(self, run_id: str, request: EndRequest) -> RunClosed:
        """Give the run its outcome."""
        ...

    def release(self, run_id: str, request: ReleaseRequest) -> RunClosed:
        """Let the run go as it is."""
        ...

    def leave(self, offer: WorkerOffer) -> None:
        """Say that this machine, which claimed with such words, asks for no more runs; tried once, and not for long."""
        ...

    def fetch(self, download: InputDownload, target: Path) -> None:
        """Fetch bytes to a file, whole and of this digest, or not at all."""
        ...

    def send(self, grant: UploadGrant, content: BinaryIO, size: int) -> str:
        """Send ``size`` bytes from the beginning of ``content``; return the ETag of the acknowledgement."""
        ...


def explained(error: Exception) -> Exception:
    """Return what a claim was refused with, or, where no platform answers so, that there is none at the address."""
    # A platform has the route, takes POST there and sends nobody elsewhere.
    if isinstance(error, PlatformError) and error.status in (404, 405, 501, *range(300, 400)):
        return NoPlatformError()
    return error
