"""Logging in from a terminal: the two calls of the device flow (RFC 8628); the page between them is in ``pages``."""

from __future__ import annotations

from fastapi import Request

from osmosis_ai.api.wire import auth as wire
from osmosis_ai.platform.device_logins import PollRefused
from osmosis_ai.platform.http.authentication import Services
from osmosis_ai.platform.http.errors import ApiError
from osmosis_ai.platform.http.page_shell import source_of
from osmosis_ai.platform.http.routing import api_router
from osmosis_ai.platform.http.tokens import wire_user
from osmosis_ai.platform.sign_in import network_of

router = api_router("/api/cli/device")


@router.post("/authorize")
def authorize(
    request: Request, services: Services, body: wire.DeviceAuthorizeRequest
) -> wire.DeviceAuthorization:
    """Begin a login: a secret for the device, a short code for the person."""
    started = services.device_logins.start(body.deviceName, source=network_of(source_of(request)))
    page = f"{services.config.base_url}/device"
    return wire.DeviceAuthorization(
        device_code=started.device_code,
        user_code=started.user_code,
        verification_uri=page,
        verification_uri_complete=f"{page}?code={started.user_code}",
        expires_in=started.expires_in_s,
        interval=started.interval_s,
    )


@router.post("/token")
def poll(services: Services, body: wire.DeviceTokenRequest) -> wire.IssuedToken:
    """Give out the token when somebody has approved the login; once."""
    try:
        granted = services.device_logins.poll(body.device_code)
    except PollRefused as refused:
        # Clients look for the bare words of RFC 8628.
        raise ApiError(400, refused.code.upper(), refused.code) from None
    told = {} if granted.token.expires_at is None else {"expires_at": granted.token.expires_at}
    return wire.IssuedToken(
        token=granted.plain, token_id=granted.token.id, user=wire_user(granted.user), **told
    )
