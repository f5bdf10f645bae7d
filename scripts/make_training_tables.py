"""Writes the tables of docs/training.md from what they are about, so that they cannot say anything else.

python scripts/make_training_tables.py           write them
python scripts/make_training_tables.py --check   fail when the committed page has others

Settings come from the declaration of a training run's settings, what fits where from the estimator of
`osmosis train estimate`. A table stands between `<!-- table: NAME -->` and `<!-- end of table -->`.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from osmosis_ai.config.training import ADVANCED_KEYS, SECTION_KEYS, TrainingSettings
from osmosis_ai.services.training_runs.estimate import GPUS
from osmosis_ai.training.runs.memory_estimate import GIB, ModelShape, estimate

PAGE = Path(__file__).parents[1] / "docs" / "training.md"
TABLE = re.compile(r"(?<=<!-- table: )(?P<name>[a-z-]+)( -->\n).*?(?=<!-- end of table -->)", re.DOTALL)
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


def settings_table(section: str) -> Iterator[str]:
    """Yield the keys of a section with type, default and meaning."""
    yield "| key | default | |"
    yield "|---|---|---|"
    keys = ADVANCED_KEYS if section == "advanced" else SECTION_KEYS[section]
    for key in keys:
        field = TrainingSettings.model_fields[key]
        default = "none" if field.default is None else f"`{json.dumps(field.default)}`"
        yield f"| `{key}` | {default} | {field.description} |"


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


TABLES: Mapping[str, Callable[[], Iterator[str]]] = {
    **{
        section: lambda section=section: settings_table(section)
        for section in ("training", "sampling", "checkpoints", "advanced")
    },
    "memory": memory_table,
}


def written(page: str) -> str:
    """Return the page with every table as it should be."""

    def table(match: re.Match[str]) -> str:
        lines = "\n".join(TABLES[match["name"]]())
        return f"{match['name']}{match[2]}\n{lines}\n\n"

    return TABLE.sub(table, page)


def main() -> int:
    """Write the page, or compare it."""
    parser = argparse.ArgumentParser(description="Write the tables of docs/training.md.")
    parser.add_argument("--check", action="store_true", help="fail when the page has other tables")
    options = parser.parse_args()
    page = PAGE.read_text(encoding="utf-8")
    right = written(page)
    if not options.check:
        PAGE.write_text(right, encoding="utf-8")
        return 0
    if page != right:
        print(f"{PAGE.name} is out of date: run `python scripts/make_training_tables.py`", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
