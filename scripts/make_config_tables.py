"""Writes what the docs and the guide say of config keys from their declaration, so that it cannot be anything else.

python scripts/make_config_tables.py           write it
python scripts/make_config_tables.py --check   fail when what is committed says otherwise

The pages are docs/reference/config.md, docs/guides/training.md and configs/AGENTS.md. What fits where comes from the estimator of
`osmosis train estimate`. A table stands between `<!-- table: NAME -->` and `<!-- end of table -->`.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from osmosis_ai.config.checks import all_sections
from osmosis_ai.config.decisions import DecideSettings
from osmosis_ai.config.execution import ExecutionSection
from osmosis_ai.config.issues import choices_of, members, type_in_words
from osmosis_ai.config.sections import LARGEST_COUNT, ConfigSection
from osmosis_ai.config.training import OWN_RULES, TrainingSettings
from osmosis_ai.services.training_estimate import GPUS
from osmosis_ai.training.model_support import (
    LoraPlan,
    ModelLayout,
    lora_plan,
    model_layout,
    shipped_configs,
    short_count,
)
from osmosis_ai.training.runs.memory_estimate import GIB, estimate
from osmosis_ai.workspace.doctor import guide_text

ROOT = Path(__file__).parents[1]
PAGES = ("docs/reference/config.md", "docs/guides/training.md")
GUIDE = "configs/AGENTS.md"
TABLE = re.compile(r"(?<=<!-- table: )(?P<name>[a-z-]+)( -->\n).*?(?=<!-- end of table -->)", re.DOTALL)
TABLES: Mapping[str, type[ConfigSection]] = {
    **all_sections(), "decide": DecideSettings, "execution": ExecutionSection,
}  # fmt: skip
_BOUNDS = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}


def key_table(section: str) -> Iterator[str]:
    """Yield the table of a section's keys: type and range, default, meaning."""
    yield "| key | type | default | |"
    yield "|---|---|---|---|"
    model = TABLES[section]
    schema = model.model_json_schema()["properties"]
    for key, field in model.model_fields.items():
        if field.is_required():
            default = "required"
        else:
            default = "none" if field.default is None else f"`{json.dumps(field.default)}`"
        meaning = f"{field.description}; {OWN_RULES[key][1]}" if key in OWN_RULES else field.description
        yield f"| `{key}` | {_type_and_range(schema[key])} | {default} | {meaning} |"


def _type_and_range(declared: Mapping[str, Any]) -> str:
    if choices := [f"`{choice}`" for choice in choices_of(declared)]:
        return ", ".join(choices)
    bounds = [
        f"{sign} {member[bound]:g}"
        for member in members(declared)
        for bound, sign in _BOUNDS.items()
        if member.get(bound, LARGEST_COUNT) != LARGEST_COUNT
    ]
    kind = type_in_words(declared).removeprefix("an ").removeprefix("a ")
    return f"{kind} {', '.join(bounds)}".strip()


MODELS = (
    *("Qwen/Qwen3-0.6B", "meta-llama/Llama-3.2-1B", "Qwen/Qwen3-4B", "mistralai/Mistral-7B-Instruct-v0.3"),
    *("Qwen/Qwen2.5-7B-Instruct", "meta-llama/Llama-3.1-8B", "Qwen/Qwen3-8B", "google/gemma-2-9b-it"),
    *("zai-org/GLM-4-9B-0414", "microsoft/phi-4", "Qwen/Qwen3-14B", "deepseek-ai/DeepSeek-V2-Lite-Chat"),
    *("openai/gpt-oss-20b", "Qwen/Qwen3-30B-A3B", "Qwen/Qwen3-32B", "Qwen/Qwen3.6-35B-A3B"),
)
"""Models people train, with sizes that the package has."""
LENGTHS = (4096, 8192, 16384)
"""Prompt and response each, in tokens; the last is the default."""


def memory_table() -> Iterator[str]:
    """Yield, for each model and length, what the learner needs and the smallest GPU that has it."""
    heads = " | ".join(f"{length:,} + {length:,} tokens" for length in LENGTHS)
    yield f"| model | parameters | trainable | {heads} |"
    yield f"|---|---:|---:|{'---:|' * len(LENGTHS)}"
    settings = TrainingSettings(policy_engine="vllm")
    for name in MODELS:
        layout = model_layout(shipped_configs()[name])
        plan = lora_plan(layout, settings.lora_rank, settings.lora_targets)
        sizes = (short_count(layout.parameters), short_count(plan.trainable_parameters))
        cells = [
            _needed(
                layout, plan, settings.model_copy(update={"max_prompt_length": n, "max_response_length": n})
            )
            for n in LENGTHS
        ]
        yield f"| {' | '.join((name, *sizes, *cells))} |"


def _needed(layout: ModelLayout, plan: LoraPlan, settings: TrainingSettings) -> str:
    total = estimate(layout, plan, settings).total
    fitting = [name for name, size in sorted(GPUS.items(), key=lambda item: item[1]) if total <= size]
    return f"{total / GIB:.0f} GiB: {fitting[0] if fitting else 'several GPUs'}"


def table(name: str) -> str:
    """Return the table that has this name on its page."""
    return "\n".join(memory_table() if name == "memory" else key_table(name))


def written(page: str) -> str:
    """Return the page with every table as it should be."""
    return TABLE.sub(lambda match: f"{match['name']}{match[2]}\n{table(match['name'])}\n\n", page)


def main() -> int:
    """Write the pages, or compare them."""
    right = {name: written((ROOT / name).read_text(encoding="utf-8")) for name in PAGES}
    right[GUIDE] = guide_text(GUIDE)
    stale = [name for name, text in right.items() if (ROOT / name).read_text(encoding="utf-8") != text]
    if "--check" not in sys.argv:
        for name in stale:
            (ROOT / name).write_text(right[name], encoding="utf-8")
    elif stale:
        print(f"{', '.join(stale)} out of date: run `python scripts/make_config_tables.py`", file=sys.stderr)
    return int("--check" in sys.argv and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
