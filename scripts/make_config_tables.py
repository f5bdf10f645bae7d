"""Writes what the docs and the guide say of config keys from their declaration, so that it cannot be anything else.

python scripts/make_config_tables.py           write it
python scripts/make_config_tables.py --check   fail when what is committed says otherwise

The pages are docs/reference/config.md, docs/guides/training.md and configs/AGENTS.md. What fits where comes from the estimator of
`osmosis train estimate`. A table stands between `<!-- table: NAME -->` and `<!-- end of table -->`.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
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
from osmosis_ai.training.runs.memory_estimate import GIB, ModelShape, estimate
from osmosis_ai.workspace.doctor import guide_text

ROOT = Path(__file__).parents[1]
PAGES = ("docs/reference/config.md", "docs/guides/training.md")
GUIDE = "configs/AGENTS.md"
TABLE = re.compile(r"(?<=<!-- table: )(?P<name>[a-z-]+)( -->\n).*?(?=<!-- end of table -->)", re.DOTALL)
TABLES: Mapping[str, type[ConfigSection]] = {
    **all_sections(),
    "decide": DecideSettings,
    "execution": ExecutionSection,
}
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


_QWEN3 = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "vocab_size": 151_936,
    "head_dim": 128,
}
_LLAMA = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 128_256}


def _sizes(hidden: int, inner: int, layers: int, heads: int, *, tied: bool = False) -> dict[str, Any]:
    return {
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": 8,
        "tie_word_embeddings": tied,
    }


MODELS: Mapping[str, Mapping[str, Any]] = {
    "Qwen/Qwen3-0.6B": {**_QWEN3, **_sizes(1024, 3072, 28, 16, tied=True)},
    "meta-llama/Llama-3.2-1B": {**_LLAMA, **_sizes(2048, 8192, 16, 32, tied=True)},
    "Qwen/Qwen3-1.7B": {**_QWEN3, **_sizes(2048, 6144, 28, 16, tied=True)},
    "Qwen/Qwen3-4B": {**_QWEN3, **_sizes(2560, 9728, 36, 32, tied=True)},
    "meta-llama/Llama-3.1-8B": {**_LLAMA, **_sizes(4096, 14_336, 32, 32)},
    "Qwen/Qwen3-8B": {**_QWEN3, **_sizes(4096, 12_288, 36, 32)},
    "Qwen/Qwen3-14B": {**_QWEN3, **_sizes(5120, 17_408, 40, 40)},
    "Qwen/Qwen3-32B": {**_QWEN3, **_sizes(5120, 25_600, 64, 64)},
}
"""Models people train, by the sizes in their published configurations."""
LENGTHS = (1024, 4096, 8192)
"""Prompt and response each, in tokens; the last is the default."""


def memory_table() -> Iterator[str]:
    """Yield, for each model and length, what a run needs and the smallest GPU that has it."""
    heads = " | ".join(f"{length:,} + {length:,} tokens" for length in LENGTHS)
    yield f"| model | parameters | {heads} |"
    yield f"|---|---:|{'---:|' * len(LENGTHS)}"
    for name, config in MODELS.items():
        shape = _shape(config)
        cells = " | ".join(_needed(shape, length) for length in LENGTHS)
        yield f"| {name} | {shape.parameters / 1e9:.1f} B | {cells} |"


def _shape(config: Mapping[str, Any]) -> ModelShape:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(config))
        return ModelShape.read(folder, TrainingSettings())


def _needed(shape: ModelShape, length: int) -> str:
    settings = TrainingSettings(max_prompt_length=length, max_response_length=length)
    total = estimate(shape, settings).total
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
    parser = argparse.ArgumentParser(description="Write what the docs say of config keys.")
    parser.add_argument("--check", action="store_true", help="fail when a page says otherwise")
    options = parser.parse_args()
    right = {name: written((ROOT / name).read_text(encoding="utf-8")) for name in PAGES}
    right[GUIDE] = guide_text(GUIDE)
    stale = [name for name, text in right.items() if (ROOT / name).read_text(encoding="utf-8") != text]
    if not options.check:
        for name in stale:
            (ROOT / name).write_text(right[name], encoding="utf-8")
    elif stale:
        print(f"{', '.join(stale)} out of date: run `python scripts/make_config_tables.py`", file=sys.stderr)
    return 1 if options.check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
