"""Logging in, asking who one is, logging out."""

from __future__ import annotations

from typing import Literal

from osmosis_ai.api import routes
from osmosis_ai.api.http_errors import PlatformError
from osmosis_ai.api.resources.resource import Resource
from osmosis_ai.api.wire.auth import (
    DeviceAuthorization,
    DeviceAuthorizeRequest,
    DeviceTokenRequest,
    IssuedToken,
    Verification,
)

REVOKE_TIMEOUT_S = 5.0
Waiting = Literal["authorization_pending", "slow_down"]


class Auth(Resource):
    """Device login, verification, revocation."""

    def verify(self) -> Verification:
        """Return whose token this is; with a repository, also its workspace."""
        return self._client.get(routes.VERIFY, model=Verification, git="optional")

    def authorize_device(self, device_name: str) -> DeviceAuthorization:
        """Begin a login: return the code that the user confirms in a browser."""
        return self._client.request(
            "POST",
            routes.DEVICE_AUTHORIZE,
            model=DeviceAuthorization,
            body=DeviceAuthorizeRequest(deviceName=device_name),
            git="never",
            anonymous=True,
        )

    def poll_device_token(self, device_code: str) -> IssuedToken | Waiting:
        """Return the token once the user has confirmed; until then, how to go on asking."""
        self._client.hide([device_code])
        try:
            issued = self._client.request(
                "POST",
                routes.DEVICE_TOKEN,
                model=IssuedToken,
                body=DeviceTokenRequest(device_code=device_code),
                git="never",
                anonymous=True,
            )
        except PlatformError as error:
            said = error.body.get("error")
            if said == "authorization_pending":
                return "authorization_pending"
            if said == "slow_down":
                return "slow_down"
            if said in _ENDINGS:
                message, hint = _ENDINGS[said]
                raise PlatformError(
                    message,
                    status=error.status,
                    body=error.body,
                    code="AUTH_REQUIRED",
                    details=error.details,
                    hint=hint,
                ) from None
            raise
        self._client.hide([issued.token])
        return issued

    def revoke(self, token_id: str) -> None:
        """Revoke a token of this user; it may be the one in use."""
        self._client.delete(routes.token(token_id), timeout_s=REVOKE_TIMEOUT_S, git="never")


_ENDINGS = {
    "expired_token": ("The login was not confirmed in time.", "run `osmosis login` again"),
    "access_denied": (
        "The login was declined in the browser.",
        "run `osmosis login` again if that was a mistake",
    ),
}
