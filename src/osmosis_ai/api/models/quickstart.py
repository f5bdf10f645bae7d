"""The user's progress with the first steps in a workspace."""

from __future__ import annotations

from typing import Literal, get_args

from osmosis_ai.api.models.base import WireModel

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
