"""Telling an agent that failed from one that this machine failed.

An agent's client that is answered too late gives up, and the agent fails with its client's error. Two
facts set that apart from a failure of the agent's own: its model call never arrived, or was cut off
by its own client; and one of the event loops in between was late meanwhile. Both together make the
attempt *lost*: nothing is recorded of it, and it is made again, so often and no more.

An agent that fails before it calls its model looks like one whose call did not arrive. On a machine
that is late it is therefore tried again, and then its failure stands as it reported it. A call that
arrived and was cut off every time is a failure of the machine's.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from osmosis_ai.driving.restarting_server import AttemptLostError

if TYPE_CHECKING:
    from osmosis_ai.driving.call_record import RolloutUsage
    from osmosis_ai.driving.callback_registry import TerminalCallbackResult
    from osmosis_ai.driving.classify import Verdict

MAX_OVERLOADS = 2
"""How often one attempt is made again for this reason."""

# How a client's failure can be reported. A value or type that is wrong is never a matter of time.
_CLIENT_FAILURES = frozenset({"agent_error", "http_error", "timeout"})


class OverloadedError(AttemptLostError):
    """This machine was too late for the attempt's model calls."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason, death=None)


def suspected_since(
    terminal: TerminalCallbackResult,
    usage: RolloutUsage,
    *,
    started: float,
    ended: float,
    agent_timeout_s: float | None,
) -> float | None:
    """Return from when on a late machine would explain a failure; None where nothing of the kind would."""
    completion = terminal.completion
    category = completion.err_category.value if completion and completion.err_category else None
    if category not in _CLIENT_FAILURES or usage.last_error is not None:
        return None
    if not usage.requests:
        return started
    # A call that was under way when the agent's time was up was cut off by that, not by its client.
    in_time = agent_timeout_s is None or ended - started < agent_timeout_s
    return usage.cut_off_since if in_time else None


def overloaded(usage: RolloutUsage) -> OverloadedError:
    """Return the loss of an attempt, said in words."""
    what = "was cut off by its client" if usage.requests else "never arrived"
    return OverloadedError(f"its model call {what} while this machine was late")


def blame_machine(verdict: Verdict, *, times: int) -> Verdict:
    """Return the verdict on an attempt that was cut off by a late machine ``times`` times, the last one included."""
    error = f"{verdict.error} (its model call was cut off {times} times while this machine was late)"
    return replace(verdict, boundary="rollout_server", category="overloaded", error=error)
