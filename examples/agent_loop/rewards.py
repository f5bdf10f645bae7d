"""What an answer of the calculator is worth. The model is asked to end with a line such as `#### 42`."""

import math
import re

from osmosis_ai import osmosis_reward

TOLERANCE = 1e-7
_MARKED = re.compile(r"####\s*(-?[\d,]*\.?\d+)")


def extract_solution(text: str) -> str | None:
    """Return the number behind the last `####`, without thousands separators."""
    found = _MARKED.findall(text)
    return found[-1].replace(",", "") if found else None


@osmosis_reward
def compute_reward(solution_str: str, ground_truth: str, extra_info: dict | None = None) -> float:
    """1.0 when the marked number is the right one, else 0.0."""
    solution = extract_solution(solution_str)
    if solution is None:
        return 0.0
    return float(math.isclose(float(solution), float(ground_truth), rel_tol=0.0, abs_tol=TOLERANCE))


def exact_match(
    solution_str: str, ground_truth: str, extra_info: dict | None = None, **kwargs: object
) -> float:
    """1.0 when the marked number is written just like the right one, else 0.0."""
    return 1.0 if extract_solution(solution_str) == ground_truth.strip() else 0.0


def partial_match(
    solution_str: str, ground_truth: str, extra_info: dict | None = None, **kwargs: object
) -> float:
    """1.0 for the right number where it belongs, 0.5 where it only occurs, else 0.0."""
    if compute_reward(solution_str, ground_truth) == 1.0:
        return 1.0
    occurs = re.search(rf"(?<![\d.]){re.escape(ground_truth.strip())}(?![\d]|\.\d)", solution_str)
    return 0.5 if occurs else 0.0
