"""What `osmosis eval plan` says: sentences that decide how much to run, and the table behind them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from osmosis_ai.cli.output.formats import count, duration, money, percent
from osmosis_ai.cli.output.markdown_report import DecisionDocument
from osmosis_ai.cli.output.results import Cell, Column, Styled, Table

if TYPE_CHECKING:
    from osmosis_ai.evaluation.comparison.planning import Design, EvalPlan
    from osmosis_ai.services.eval_runs.plan import PlannedEval

_ALIKE = 0.02
"""Two designs whose differences lie closer than this share of them see as much as each other."""


def sentences(planned: PlannedEval) -> list[str]:
    """Return what the plan comes to: the config judged, then what would reach the goal, then what helps."""
    return [*_own(planned), *_goal(planned), *_budget(planned), *_what_helps(planned)]


def table(planned: PlannedEval) -> Table:
    """Return every design, what it sees, costs and takes."""
    plan, judged_by = planned.plan, planned.plan.goal.judged_by
    columns: list[Column | str] = [
        Column("Rows", right=True),
        Column("n", right=True),
        Column("Attempts", right=True),
        Column("Sees (points)" if planned.metric == "pass_rate" else "Sees", right=True),
    ]
    if plan.outlook.possible:
        columns.append(Column("Range", right=True))
    if judged_by is not None:
        columns.append(Column(f"Finds {_amount(planned, judged_by)}", right=True))
    columns += [Column("Cost", right=True), Column("Time", right=True), ""]
    return Table(
        columns,
        [_row(planned, design) for design in plan.designs],
        title="Designs",
        note=_table_note(plan),
        in_plain=True,
    )


def document(planned: PlannedEval, shown: Table) -> DecisionDocument:
    """Return the plan for people who did not run the command."""
    said = sentences(planned)
    return DecisionDocument(
        title="osmosis eval plan",
        marker=f"eval.plan:{planned.config}",
        verdict=said[0],
        notes=[*said[1:], *planned.notes],
        blocks=[shown],
    )


def _row(planned: PlannedEval, design: Design) -> tuple[Cell, ...]:
    plan = planned.plan
    enough = plan.goal.detect is not None and design.sees is not None and design.sees <= plan.goal.detect
    sees = _cell(planned, design.sees)
    sizes = (count(design.rows), design.n, count(design.attempts))
    cells: list[Cell] = [*sizes, Styled(sees, "good") if enough else sees]
    if plan.outlook.possible:
        cells.append(_range(planned, design))
    if plan.goal.judged_by is not None:
        cells.append(percent(design.power, digits=0))
    cost = "unknown" if design.cost_usd is None else money(design.cost_usd)
    time = "unknown" if design.duration_s is None else duration(design.duration_s)
    return (*cells, cost, time, ", ".join(_marks(plan, design)))


def _range(planned: PlannedEval, design: Design) -> str | None:
    if design.least is None:
        return None
    least, most = _cell(planned, design.least), _cell(planned, design.greatest)
    return least if least == most else f"{least} – {most}"


def _marks(plan: EvalPlan, design: Design) -> Iterator[str]:
    if design == plan.own:
        yield "the config"
    if design == plan.cheapest:
        yield "cheapest that does"
    if design == plan.best:
        yield f"best for {money(plan.goal.most_cost_usd)}"


def _table_note(plan: EvalPlan) -> str:
    goal, at_once = plan.goal, plan.price.at_once
    pace = "one attempt after another" if at_once == 1 else f"{at_once} attempts at once"
    return (
        f"sees: the smallest difference found in {percent(goal.power, digits=0)} of all cases, at "
        f"{100 * goal.confidence:g} % confidence; cost and time of one run, {pace}"
    )


def _own(planned: PlannedEval) -> Iterator[str]:
    plan, own = planned.plan, planned.plan.own
    if own is None:
        yield f"{planned.config} names no limit, and how many rows its dataset has is not known: the table shows designs."
        return
    runs = f"{planned.config} runs {_size(own)}"
    if own.rows < 2:
        yield f"{runs}: no number of attempts on one row shows a difference, because it says nothing about others."
        return
    if own.sees is None:
        yield f"{runs}: no difference is large enough for this design to see it in {_times(plan.goal.power)} of 10 cases."
        return
    sentence = f"{runs}: this design sees {_amount(planned, own.sees)} or more"
    if plan.goal.judged_by is not None and own.power is not None:
        sentence += f"; {_a_change(planned, plan.goal.judged_by)} {_as_noise(own.power)}"
    yield f"{sentence}."


def _goal(planned: PlannedEval) -> Iterator[str]:
    plan, detect = planned.plan, planned.plan.goal.detect
    if detect is None:
        return
    what, cheapest = _amount(planned, detect), plan.cheapest
    if cheapest is None:
        most = plan.goal.most_rows
        where = f"{_rows(most)}" if most is not None else "any number of rows"
        sentence = f"No number of attempts on {where} will show {what}"
        if plan.rows_wanted is not None:
            wanted_n = planned.n if plan.outlook.likely.within is not None else 1
            sentence += f"; {_rows(plan.rows_wanted)} with n = {wanted_n} would"
        yield f"{sentence}."
        return
    often = f"in {_times(plan.goal.power)} of 10 cases"
    yield f"To find {what} {often}, {_size(cheapest)} is the cheapest design{_price(cheapest)}."
    cost, most_cost = cheapest.cost_usd, plan.goal.most_cost_usd
    if cost is not None and most_cost is not None and cost > most_cost:
        yield f"That is more than the {money(most_cost)} there are."


def _budget(planned: PlannedEval) -> Iterator[str]:
    plan, most = planned.plan, planned.plan.goal.most_cost_usd
    if most is None:
        return
    if plan.price.cost_usd == 0 and not plan.goal.row_cost_usd:
        yield "Attempts cost nothing here: rows and time are the limit."
    elif plan.best is None:
        yield f"{money(most)} buy no design of two rows or more."
    else:
        best = plan.best
        sees = (
            "no difference within the scale"
            if best.sees is None
            else f"{_amount(planned, best.sees)} or more"
        )
        yield f"For {money(most)} the best design is {_size(best)}: it sees {sees}{_price(best)}."


def _what_helps(planned: PlannedEval) -> Iterator[str]:
    plan = planned.plan
    own, rows, attempts = plan.own, plan.more_rows, plan.more_attempts
    known = [
        f"twice the {name} would see {_amount(planned, design.sees)}"
        for name, design in (("rows", rows), ("attempts", attempts))
        if design is not None and design.sees is not None
    ]
    if own is not None and own.rows >= 2 and known:
        sentence = ", ".join(known)
        if rows is None:
            sentence = f"there are not twice the rows, and {sentence}"
        elif attempts is not None and rows.sees and attempts.sees:
            sentence += f": {_which(rows.sees, attempts.sees)}"
        yield f"{sentence[0].upper()}{sentence[1:]}."
    if plan.best_n is None:
        return
    if plan.goal.row_cost_usd:
        yield (
            f"n = {plan.best_n} tells most for the money where a row costs {money(plan.goal.row_cost_usd)} to make and an "
            f"attempt {money(plan.price.cost_usd)}."
        )
    elif rows is not None:
        yield "For the money, a further row tells more than a further attempt, as long as there are rows."


def _which(by_rows: float, by_attempts: float) -> str:
    if by_attempts < by_rows * (1 - _ALIKE):
        return "more attempts help more than more rows"
    if by_attempts <= by_rows * (1 + _ALIKE):
        return "more attempts help as much as more rows"
    return "more rows help more than more attempts"


def _price(design: Design) -> str:
    known = [
        money(design.cost_usd) if design.cost_usd is not None else None,
        duration(design.duration_s) if design.duration_s is not None else None,
    ]
    shown = [each for each in known if each is not None]
    return f" ({', '.join(shown)})" if shown else ""


def _size(design: Design) -> str:
    return f"{_rows(design.rows)} x {design.n}"


def _rows(count: int) -> str:
    return f"{count:,} row{'' if count == 1 else 's'}"


def _cell(planned: PlannedEval, difference: float | None) -> str:
    """Return a difference as a column has it, with the decimals of those above and below; None is seen by nobody."""
    if difference is None:
        return "none"
    if planned.metric == "pass_rate":
        return f"{100 * difference:.1f}"
    return f"{difference:.3f}" if difference >= 0.01 else f"{difference:.3g}"


def _number(planned: PlannedEval, difference: float) -> str:
    return _points(difference) if planned.metric == "pass_rate" else f"{difference:.3g}"


def _amount(planned: PlannedEval, difference: float) -> str:
    """Return ``7.1 points`` for a rate, ``0.071`` for a reward."""
    number = _number(planned, difference)
    return f"{number} point{'' if number == '1' else 's'}" if planned.metric == "pass_rate" else number


def _a_change(planned: PlannedEval, difference: float) -> str:
    if planned.metric != "pass_rate":
        return f"a change of {difference:.3g}"
    return f"a {_points(difference)}-point change"


def _points(difference: float) -> str:
    digits = 1 if difference >= 0.001 else 3
    return f"{100 * difference:.{digits}f}".removesuffix(".0")


def _as_noise(power: float) -> str:
    missed = round(10 * (1 - power))
    if missed in (0, 10):
        return f"will {'nearly always' if missed else 'hardly ever'} look like noise"
    return f"will look like noise {f'{missed} times' if missed > 1 else 'once'} in 10"


def _times(power: float) -> str:
    return f"{10 * power:.2g}"
