"""What is said beside a bar of any work that asks models."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from osmosis_ai.cli.output import formats

if TYPE_CHECKING:
    from osmosis_ai.evaluation.run_state import ProgressSnapshot
    from osmosis_ai.rubric.session_hooks import SessionSnapshot


def spent(snapshot: ProgressSnapshot | SessionSnapshot) -> Iterator[str]:
    """Yield what was lost and used so far, and how fast the work goes on; what there is none of is left out."""
    if snapshot.failed:
        yield f"{formats.count(snapshot.failed)} failed"
    if snapshot.tokens:
        yield f"{formats.count(snapshot.tokens)} tokens"
    if snapshot.cost_usd:
        yield formats.money(snapshot.cost_usd)
    rate = snapshot.rate_per_s
    if rate:
        yield f"{rate:.1f}/s" if rate >= 1 else f"{rate * 60:.1f}/min"
