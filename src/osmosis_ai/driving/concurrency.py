"""How many rollouts run at once: what the user asks for, within what the server can take."""

from __future__ import annotations

DEFAULT_IN_FLIGHT = 32


def choose_limit(*, max_in_flight: int | None, batch_size: int | None, capacity: int | None) -> int:
    """Return the number of rollouts in flight.

    Args:
        max_in_flight: the option; wins over ``batch_size``, the config's wish.
        capacity: what the rollout's server runs at once; None when it has no limit or does not say.
    """
    wished = max_in_flight or batch_size
    if capacity is None:
        return wished or DEFAULT_IN_FLIGHT
    return min(wished, capacity) if wished else capacity
