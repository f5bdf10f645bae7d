"""Callback bodies as a rollout server sends them, written by hand from the protocol."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from osmosis_ai.rollout import GraderCompleteRequest

ROLLOUT_ID = "0123456789abcdef0123456789abcdef"


def completion_body(rollout_id: str = ROLLOUT_ID, **changes: Any) -> dict[str, Any]:
    return {
        "status": "success",
        "rollout_id": rollout_id,
        "extra_fields": None,
        "err_message": None,
        "err_category": None,
        **changes,
    }


def grader_body(
    rollout_id: str = ROLLOUT_ID, *, reward: float | None = 1.0, **changes: Any
) -> dict[str, Any]:
    return {
        "status": "success",
        "rollout_id": rollout_id,
        "sample": {
            "messages": [{"role": "user", "content": "say ok"}, {"role": "assistant", "content": "ok"}],
            "label": "ok",
            "reward": reward,
            "remove_sample": False,
            "metrics": {},
            "extra_fields": {},
        },
        "err_message": None,
        "err_category": None,
        **changes,
    }


def grader(rollout_id: str = ROLLOUT_ID, **changes: Any) -> GraderCompleteRequest:
    return GraderCompleteRequest.model_validate(grader_body(rollout_id, **changes))


class EchoBridge:
    """Echoes a model call."""

    def routes(self) -> list[web.RouteDef]:
        return [web.post("/v1/rollouts/{rollout_id}/chat/completions", self.complete)]

    async def complete(self, request: web.Request) -> web.Response:
        return web.json_response({"id": request.match_info["rollout_id"], "body": await request.json()})
