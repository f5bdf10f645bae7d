"""Sandboxes for rollouts, which see only their own run.

``Sandbox`` builds the bubblewrap command line, ``check_sandbox`` tests that command on this machine, and
``choose_isolation`` combines the result with the machine's setting and the run's request.
"""

from osmosis_ai.sandbox.bubblewrap import Sandbox, SandboxedProgram, interpreter_places
from osmosis_ai.sandbox.control_groups import (
    CGROUP_ENV,
    MachineControl,
    RunLimits,
    control_run,
    look_at_control,
    prepare_control,
    processors_for,
)
from osmosis_ai.sandbox.gpus import GpuGrant, grant_gpus
from osmosis_ai.sandbox.isolation import (
    ISOLATION_ENV,
    Isolation,
    IsolationSetting,
    IsolationUnavailableError,
    choose_isolation,
    isolation_setting,
    stricter,
)
from osmosis_ai.sandbox.network import NETWORK_ENV, InnerListener, Network, narrower
from osmosis_ai.sandbox.self_test import SandboxCapability, check_sandbox

__all__ = [
    "CGROUP_ENV",
    "ISOLATION_ENV",
    "NETWORK_ENV",
    "GpuGrant",
    "InnerListener",
    "Isolation",
    "IsolationSetting",
    "IsolationUnavailableError",
    "MachineControl",
    "Network",
    "RunLimits",
    "Sandbox",
    "SandboxCapability",
    "SandboxedProgram",
    "check_sandbox",
    "choose_isolation",
    "control_run",
    "grant_gpus",
    "interpreter_places",
    "isolation_setting",
    "look_at_control",
    "narrower",
    "prepare_control",
    "processors_for",
    "stricter",
]
