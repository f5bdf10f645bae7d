"""Device login, verification, workspaces, and the first steps in a workspace."""

from __future__ import annotations

from typing import Literal, get_args

from pydantic import Field

from osmosis_ai.api.models.base import Timestamp, WireModel


class DeviceAuthorizeRequest(WireModel):
    deviceName: str = "Unknown"


class DeviceAuthorization(WireModel):
    """The code to confirm; ``expires_in`` and ``interval`` are seconds."""

    device_code: str = Field(repr=False)
    user_code: str
    verification_uri: str
    verification_uri_complete: str | None = None
    expires_in: float
    interval: float


class DeviceTokenRequest(WireModel):
    device_code: str = Field(repr=False)


class User(WireModel):
    id: str
    email: str
    name: str | None = None


class IssuedToken(WireModel):
    token: str = Field(repr=False)
    token_id: str | None = None
    expires_at: Timestamp | None = None
    user: User


class WorkspaceMembership(WireModel):
    """``role`` is ``owner``, ``admin`` or ``member``."""

    id: str
    name: str
    role: str = "member"


class Verification(WireModel):
    """The reply to ``GET /api/cli/verify``; the last two keys are for older clients."""

    user: User
    expires_at: Timestamp | None = None
    token_id: str | None = None
    workspace: WorkspaceMembership | None = None
    valid: bool = True
    organization: WorkspaceMembership | None = None


class ConnectedRepository(WireModel):
    id: str | None = None
    repo_full_name: str


class Workspace(WireModel):
    id: str
    name: str
    role: str | None = None
    has_billing_setup: bool | None = None
    connected_repo: ConnectedRepository | None = None


class WorkspaceList(WireModel):
    workspaces: list[Workspace]


Intent = Literal["train", "eval", "benchmark", "explore"]
INTENTS: tuple[Intent, ...] = get_args(Intent)


class QuickstartRepository(WireModel):
    """``full_name`` is what clients send as the repository; ``clone_url``, only from our platform, is for Git."""

    connected: bool = False
    full_name: str | None = None
    clone_url: str | None = None


class QuickstartStatus(WireModel):
    repo: QuickstartRepository = QuickstartRepository()
    billing_ready: bool = False
    completed: bool = False


class QuickstartChoice(WireModel):
    organizationId: str
    intent: Intent


class QuickstartRecorded(WireModel):
    completed: bool = False
