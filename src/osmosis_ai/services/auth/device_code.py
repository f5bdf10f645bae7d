"""Waiting for a person to confirm a code in a browser (the device grant of RFC 8628)."""

from __future__ import annotations

import socket
import time
from typing import Protocol

from osmosis_ai.api.client import PlatformClient
from osmosis_ai.api.http_errors import PlatformError
from osmosis_ai.api.wire.auth import DeviceAuthorization, IssuedToken
from osmosis_ai.errors import OsmosisError

LONGEST_WAIT_S = 900.0
_SHORTEST_INTERVAL_S, _LONGEST_INTERVAL_S, _SLOWER_BY_S = 1.0, 30.0, 5.0
# Confirming takes minutes, and a connection may be lost for a moment of them.
_FAILURES_IN_A_ROW = 3


class Time(Protocol):
    """Tells and passes time, in seconds."""

    def monotonic(self) -> float:
        """Return the time since some moment."""

    def sleep(self, seconds: float, /) -> None:
        """Let time pass."""


def device_name() -> str:
    """Return what this machine is called on the page where its login is confirmed."""
    return socket.gethostname().strip() or "Unknown"


def minutes_to_confirm(authorization: DeviceAuthorization) -> int:
    """Return how long the user has, in minutes, at least one."""
    return max(1, round(_wait_s(authorization) / 60))


def await_token(
    client: PlatformClient, authorization: DeviceAuthorization, clock: Time = time
) -> IssuedToken:
    """Ask for the token, as often as the platform allows, until the user has decided.

    Raises:
        OsmosisError: ``AUTH_REQUIRED`` when the user declined or did not confirm in time.
        PlatformError: the platform failed, and went on failing.
    """
    deadline = clock.monotonic() + _wait_s(authorization)
    interval = min(max(authorization.interval, _SHORTEST_INTERVAL_S), _LONGEST_INTERVAL_S)
    failures = 0
    while True:
        try:
            answer = client.auth.poll_device_token(authorization.device_code)
        except PlatformError as error:
            failures += 1
            if failures >= _FAILURES_IN_A_ROW or not _may_pass(error):
                raise
        else:
            failures = 0
            if isinstance(answer, IssuedToken):
                return answer
            if answer == "slow_down":
                interval = min(interval + _SLOWER_BY_S, _LONGEST_INTERVAL_S)
        remaining = deadline - clock.monotonic()
        if remaining <= 0:
            raise OsmosisError(
                "The login was not confirmed in time.",
                code="AUTH_REQUIRED",
                hint="run `osmosis login` again",
            )
        clock.sleep(min(interval, remaining))


def _wait_s(authorization: DeviceAuthorization) -> float:
    return max(0.0, min(LONGEST_WAIT_S, authorization.expires_in))


def _may_pass(error: PlatformError) -> bool:
    return error.status is None or error.status == 429 or error.status >= 500
