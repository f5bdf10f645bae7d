"""The budget of an evaluation: ``max_cost`` and ``max_tokens`` of ``[advanced.execution]``.

It limits what one submit or one retry spends. It is checked each time a worker reports records: when it is used up, the run
ends. The attempts that are in flight by then have cost something too.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import and_, case, func, or_, select
from sqlalchemy.orm import Session

from osmosis_ai.config.execution import ExecutionSection
from osmosis_ai.platform.db.tables import DbRun, DbSample


def used_up(session: Session, run_id: str, limits: ExecutionSection, planned: int) -> str | None:
    """Return why a run of ``planned`` attempts must end, as a sentence with what to do; None if it may go on, or is done."""
    if limits.max_cost is None and limits.max_tokens is None:
        return None
    name = session.scalar(select(DbRun.name).where(DbRun.id == run_id))
    problem = _problem(session, run_id, limits, f"osmosis eval retry {name}")
    if problem is None:
        return None
    is_scored = and_(DbSample.status == "success", DbSample.reward.is_not(None))
    is_done = or_(is_scored, DbSample.status == "skipped", DbSample.position > _reopened_at(run_id))
    done = session.scalar(select(func.count()).where(DbSample.run_id == run_id, is_done))
    return None if done == planned else problem


def _problem(session: Session, run_id: str, limits: ExecutionSection, again: str) -> str | None:
    tokens, cost = func.coalesce(DbSample.tokens, 0), func.coalesce(DbSample.cost_usd, 0.0)
    called = DbSample.model_calls > 0
    totals = select(
        func.sum(tokens + func.coalesce(DbSample.judge_tokens, 0)),
        func.sum(cost + func.coalesce(DbSample.judge_cost_usd, 0.0)),
        func.count(case((and_(called, tokens == 0), 1))),
        func.count(case((and_(called, DbSample.cost_usd.is_(None)), 1))),
    )
    new = DbSample.run_id == run_id, DbSample.position > _reopened_at(run_id)
    found = session.execute(totals.where(*new)).one()
    used_tokens, spent, without_tokens, without_cost = (number or 0 for number in found)
    if limits.max_cost is not None and spent >= limits.max_cost:
        return (
            f"its budget is used up: it had spent ${spent:.4f}, and max_cost is {limits.max_cost:g}. Continue with "
            f"`{again} --max-cost DOLLARS`."
        )
    if limits.max_tokens is not None and used_tokens >= limits.max_tokens:
        return (
            f"its budget is used up: it had used {used_tokens:,} tokens, and max_tokens is {limits.max_tokens:,}. Continue with "
            f"`{again} --max-tokens TOKENS`."
        )
    if without_tokens:
        return "its budget cannot be kept: the model does not report how many tokens it used. Submit it without one."
    if without_cost and limits.max_cost is not None:
        return "its budget cannot be kept: the price of the model is unknown. Limit it with `max_tokens` instead."
    return None


def _reopened_at(run_id: str) -> Any:
    return select(DbRun.reopened_at).where(DbRun.id == run_id).scalar_subquery()
