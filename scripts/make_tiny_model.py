"""Make the built-in policy `osmosis/tiny` from nothing: tokenizer, training, evaluation, card.

    python scripts/make_tiny_model.py [--target DIRECTORY]

Needs the `train` extra and about eight minutes of one core. The steps and the seed are fixed. With
`--measure` an existing model is evaluated again and its card rewritten, without training.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

from tiny_model.card import write_card, write_checksums
from tiny_model.evaluation import evaluate
from tiny_model.reference import write_reference
from tiny_model.tokenizer import save_tokenizer, train_tokenizer
from tiny_model.training import Recipe, TrainingReport, train

from osmosis_ai.inference.chat import ChatTemplate

REPOSITORY = Path(__file__).resolve().parents[1]
TARGET = REPOSITORY / "src" / "osmosis_ai" / "inference" / "models" / "tiny"
TEMPLATE = REPOSITORY / "scripts" / "tiny_model" / "chat_template.jinja"
MULTIPLY_ROWS = REPOSITORY / "data" / "multiply.jsonl"
REFERENCE = REPOSITORY / "tests" / "inference" / "transformers_reference.json"
RECIPE_FILE = "recipe.json"
# Between these, reinforcement learning has successes to build on and failures to remove.
USEFUL_PASS_RATES = (0.33, 0.47)


def main() -> int:
    """Make the model; the exit status is 1 when its pass rate is not what the demo needs."""
    parser = argparse.ArgumentParser(description="Make the built-in policy osmosis/tiny.")
    parser.add_argument(
        "--target", type=Path, default=TARGET, help="where to write it (default: %(default)s)"
    )
    parser.add_argument("--measure", action="store_true", help="evaluate what is there, without training")
    options = parser.parse_args()
    if not options.measure:
        make(options.target)
    recipe, report = read_recipe(options.target)
    evaluation = evaluate(options.target, MULTIPLY_ROWS)
    print(json.dumps(asdict(evaluation), indent=2))
    write_card(options.target, recipe, report, evaluation)
    write_checksums(options.target)
    if options.target == TARGET:
        write_reference(options.target, REFERENCE)
    low, high = USEFUL_PASS_RATES
    if not low <= evaluation.multiply <= high:
        print(f"the pass rate {evaluation.multiply:.3f} is not between {low} and {high}", file=sys.stderr)
        return 1
    return 0


def make(target: Path) -> None:
    """Train the tokenizer and the model, and note how."""
    target.mkdir(parents=True, exist_ok=True)
    recipe, source = Recipe(), TEMPLATE.read_text(encoding="utf-8")
    template = ChatTemplate(source)
    tokenizer = train_tokenizer(template, recipe.seed)
    save_tokenizer(tokenizer, source, target)
    report = train(recipe, tokenizer, template, target)
    for path in target.iterdir():
        path.chmod(0o644)
    facts = {"recipe": asdict(recipe), "training": asdict(report)}
    (target / RECIPE_FILE).write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")


def read_recipe(target: Path) -> tuple[Recipe, TrainingReport]:
    """Read how the model in ``target`` was made."""
    facts = json.loads((target / RECIPE_FILE).read_text(encoding="utf-8"))
    return Recipe(**facts["recipe"]), TrainingReport(**facts["training"])


if __name__ == "__main__":
    sys.exit(main())
