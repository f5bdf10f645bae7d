"""Write the sample datasets: `data/multiply.jsonl` to evaluate on, `data/multiply_train.jsonl` to train on.

The two files never share a product: of each unordered pair of factors, one file at most holds a
question. The same seed gives the same bytes on every Python, so running this script on a clean
checkout changes nothing.

    python scripts/make_multiply_data.py [--directory data] [--seed 20250917]
"""

from __future__ import annotations

import argparse
import json
import random
from itertools import combinations_with_replacement
from pathlib import Path

# The wordings and the range that `osmosis/tiny` has met; other models do not mind.
QUESTIONS = (
    "What is {a} * {b}?",
    "Multiply {a} by {b}.",
    "Compute {a} * {b}.",
    "What is {a} times {b}?",
)
FACTORS = range(2, 100)
EVAL_ROWS = 200
TRAIN_ROWS = 2000
SEED = 20250917

Row = dict[str, str]


def make_rows(seed: int) -> tuple[list[Row], list[Row]]:
    """Return (evaluation rows, training rows), without a common unordered pair of factors."""
    draw = random.Random(seed)
    pairs = list(combinations_with_replacement(FACTORS, 2))
    chosen = draw.sample(pairs, EVAL_ROWS + TRAIN_ROWS)
    rows = [_row(draw, *pair) for pair in chosen]
    return rows[:EVAL_ROWS], rows[EVAL_ROWS:]


def _row(draw: random.Random, a: int, b: int) -> Row:
    if draw.random() < 0.5:
        a, b = b, a
    return {"user_prompt": draw.choice(QUESTIONS).format(a=a, b=b), "ground_truth": str(a * b)}


def write_datasets(directory: Path, seed: int) -> None:
    """Write both files into ``directory``."""
    directory.mkdir(parents=True, exist_ok=True)
    evaluation, training = make_rows(seed)
    for name, rows in (("multiply", evaluation), ("multiply_train", training)):
        path = directory / f"{name}.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        print(f"{path}: {len(rows)} rows")


def main() -> None:
    parser = argparse.ArgumentParser(description="Write the sample datasets of the multiply rollout.")
    default = Path(__file__).resolve().parents[1] / "data"
    parser.add_argument("--directory", type=Path, default=default, help="where to write (default: data/)")
    parser.add_argument("--seed", type=int, default=SEED, help=f"default: {SEED}")
    options = parser.parse_args()
    write_datasets(options.directory, options.seed)


if __name__ == "__main__":
    main()
