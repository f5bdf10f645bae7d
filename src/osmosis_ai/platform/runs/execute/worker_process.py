"""What of the platform's own environment its child processes get: what makes programs run, and nothing secret.

Named one by one, because whoever starts a platform has keys of their own in their shell. A run's secrets are added
to its rollout's server alone; the worker itself gets where the platform is, and the rollout does not.
"""

from __future__ import annotations

from collections.abc import Mapping

from osmosis_ai.platform.config import PlatformConfig
from osmosis_ai.process_environment import (
    PACKAGE_PREFIXES,
    chosen,
    program_environment,
    python_environment,
)

TOKEN_VARIABLE = "_OSMOSIS_RUN_TOKEN"


def rollout_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that a rollout's server inherits."""
    return program_environment(environ)


def worker_environment(environ: Mapping[str, str], config: PlatformConfig, token: str) -> dict[str, str]:
    """Return the whole environment of a worker.

    Args:
        environ: the platform's own.
        config: where its data is.
        token: what the worker claims its run with.
    """
    return {
        **python_environment(environ),
        # It builds the rollouts' environments.
        **chosen(environ, (), PACKAGE_PREFIXES),
        "OSMOSIS_HOME": str(config.home),
        "OSMOSIS_DATABASE_URL": config.database_url,
        "PYTHONUNBUFFERED": "1",
        "PYTHONSAFEPATH": "1",
        TOKEN_VARIABLE: token,
    }
