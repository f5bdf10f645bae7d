"""Evaluations in this process, under the path that 0.2 had: this is the module :mod:`osmosis_ai.evaluation.agent_loop.eval_runner` itself."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from osmosis_ai.evaluation.agent_loop.eval_runner import *  # noqa: F403
else:
    from osmosis_ai.evaluation.agent_loop import eval_runner

    # What a test patches here must be the thing in use.
    sys.modules[__name__] = eval_runner
