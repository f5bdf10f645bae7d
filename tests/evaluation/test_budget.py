from __future__ import annotations

import pytest

from osmosis_ai.errors import OsmosisError
from osmosis_ai.evaluation.budget import Budget, Spending, Spent


def test_without_a_budget_nothing_is_ever_exhausted() -> None:
    spending = Spending(Budget())
    spending.add(calls=1, tokens=0, cost_usd=None)
    assert spending.exhausted() is None


@pytest.mark.parametrize(
    ("budget", "option"),
    [(Budget(max_cost_usd=0.5), "--max-cost 0.5"), (Budget(max_tokens=100), "--max-tokens 100")],
)
def test_a_spent_budget_names_the_option_to_raise(budget: Budget, option: str) -> None:
    spending = Spending(budget)
    spending.add(calls=1, tokens=99, cost_usd=0.49)
    assert spending.exhausted() is None
    spending.add(calls=1, tokens=1, cost_usd=0.01)
    assert option in (spending.exhausted() or "")


def test_what_attempts_under_way_have_used_counts() -> None:
    spending = Spending(Budget(max_tokens=100))
    spending.add(calls=1, tokens=60, cost_usd=None)
    assert spending.exhausted(lambda: Spent(39, 0.0)) is None
    assert spending.exhausted(lambda: Spent(40, 0.0))


def test_the_time_of_earlier_sessions_counts() -> None:
    now = 1000.0
    spending = Spending(Budget(max_time_s=60), earlier_s=50, clock=lambda: now)
    now += 9
    assert spending.exhausted() is None
    now += 1
    assert "--max-time 60" in (spending.exhausted() or "")


@pytest.mark.parametrize(
    ("budget", "tokens", "cost", "reason"),
    [
        (Budget(max_cost_usd=1), 5, None, "cost of a model call is not known"),
        (Budget(max_tokens=10), 0, None, "does not report how many tokens"),
    ],
)
def test_what_cannot_be_measured_ends_the_budget_instead_of_being_free(
    budget: Budget, tokens: int, cost: float | None, reason: str
) -> None:
    spending = Spending(budget)
    spending.add(calls=1, tokens=tokens, cost_usd=cost)
    assert reason in (spending.exhausted() or "")


def test_attempts_without_model_calls_cost_nothing() -> None:
    spending = Spending(Budget(max_cost_usd=1, max_tokens=1))
    spending.add(calls=0, tokens=0, cost_usd=None)
    assert spending.exhausted() is None


@pytest.mark.parametrize("limit", [0, -1, float("nan"), float("inf")])
def test_a_limit_must_be_a_positive_number(limit: float) -> None:
    with pytest.raises(OsmosisError, match="--max-cost"):
        Budget(max_cost_usd=limit)
