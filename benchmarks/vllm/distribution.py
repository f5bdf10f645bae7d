"""Does a real vLLM sample from the distribution that is learned? On a CPU, with the built-in model.

    .venv/bin/python benchmarks/vllm/distribution.py --vllm /tmp/vllm-venv/bin/vllm

Starts vLLM as a training run does and makes the check that every run makes before its first step, with the built-in
model as it is (before and after an update of its adapter), and with the generation_config.json of Qwen 2.5 and of
Qwen 3 beside it. Beside our requests, those models are asked the way one easily does: temperature and seed said, the
rest left out. README.md says how to get a vLLM for it; it is no part of `make bench`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import tempfile
import time
from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from osmosis_ai.config.training import TrainingSettings
from osmosis_ai.datasets import iter_rows
from osmosis_ai.inference.catalog import built_in_model
from osmosis_ai.inference.chat import BuiltInChat
from osmosis_ai.inference.torch_engine import end_tokens_of
from osmosis_ai.training.engines.logprob_check import DistributionMismatchError, Probe, probe, probe_prompts
from osmosis_ai.training.engines.vllm_engine import VllmEngine, VllmServer
from osmosis_ai.training.learner.learner import Learner
from osmosis_ai.training.objective.sequences import SampledTurn, merge_turns

DATASET = Path(__file__).parents[2] / "data" / "multiply_train.jsonl"
SETTINGS = TrainingSettings(
    lr=1e-3, max_prompt_length=384, max_response_length=128, policy_engine="vllm", vllm_url="http://none"
)
# What the models' own files say.
QWEN25 = {"do_sample": True, "temperature": 0.7, "top_p": 0.8, "top_k": 20, "repetition_penalty": 1.05}
QWEN3 = {"do_sample": True, "temperature": 0.6, "top_p": 0.95, "top_k": 20}
# All that a request said before every parameter was.
SAID_CARELESSLY = {
    *("model", "prompt", "max_tokens", "temperature", "seed", "stop_token_ids", "logprobs"),
    *("return_token_ids", "return_tokens_as_token_ids", "skip_special_tokens"),
}


class CarelessEngine(VllmEngine):
    """Leaves out what one easily leaves out."""

    async def _send(self, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        if path == "/v1/completions" and body is not None:
            body = {key: value for key, value in body.items() if key in SAID_CARELESSLY}
        return await super()._send(path, body)


@dataclass(frozen=True)
class Case:
    """A server and the requests to it.

    Attributes:
        name: for people.
        generation_config: put beside the model; None leaves the model's own.
        args: further ones of `vllm serve`.
        engines: who asks, and whether the check must pass then.
    """

    name: str
    generation_config: Mapping[str, Any] | None
    args: tuple[str, ...]
    engines: tuple[tuple[type[VllmEngine], bool], ...]


AUTO = ("--generation-config", "auto")
BOTH = ((CarelessEngine, False), (VllmEngine, True))
CASES = {
    "own": Case("the model's own file, server as a run starts it", None, (), ((VllmEngine, True),)),
    "qwen3": Case("Qwen 3's file, server with `--generation-config auto`", QWEN3, AUTO, BOTH),
    "qwen25": Case("Qwen 2.5's file, server with `--generation-config auto`", QWEN25, AUTO, BOTH),
    "flag": Case(
        "Qwen 2.5's file, server as a run starts it", QWEN25, (), ((CarelessEngine, True), (VllmEngine, True))
    ),
}


async def measure(case: Case, program: str, folder: Path) -> bool:
    """Start a server, check it with each kind of request, print what came of it; return whether it was as expected."""
    model = folder / "model"
    shutil.copytree(built_in_model("osmosis/tiny"), model)
    if case.generation_config is not None:
        own = json.loads((model / "generation_config.json").read_text())
        (model / "generation_config.json").write_text(json.dumps({**own, **case.generation_config}))
    learner = Learner("osmosis/tiny", SETTINGS, "cpu")
    prompts = probe_prompts(iter_rows(DATASET), BuiltInChat(model), longest=SETTINGS.max_prompt_length)
    server = VllmServer(
        SETTINGS.model_copy(update={"vllm_command": [program], "vllm_args": ("--enforce-eager", *case.args)}),
        model=str(model),
        served_as="osmosis/tiny",
        dtype="float32",
        log_path=folder / "server.log",
        environ={**os.environ, "VLLM_CPU_KVCACHE_SPACE": "1"},
    )
    started = time.monotonic()
    as_expected = True
    async with server:
        print(f"\n{case.name}: ready after {time.monotonic() - started:.0f} s", flush=True)
        for kind, must_pass in case.engines:
            engine = kind(
                server.url,
                model="osmosis/tiny",
                end_token_ids=end_tokens_of(model),
                adapters_dir=folder / "adapters",
                server=server,
            )
            async with engine:
                found = await report(kind.__name__, engine, learner, prompts)
                as_expected &= found == must_pass
                if case.generation_config is None:
                    await update(engine, learner, prompts)
                    found = await report(f"{kind.__name__}, adapter v1", engine, learner, prompts)
                    as_expected &= found
    return as_expected


async def report(name: str, engine: VllmEngine, learner: Learner, prompts: list[tuple[int, ...]]) -> bool:
    """Make the check; print its figures and return whether it passed."""
    started = time.monotonic()
    found: Probe = await probe(engine, learner, prompts, SETTINGS)
    try:
        found.require_agreement(float32=True)
        verdict = "passes"
    except DistributionMismatchError as error:
        verdict = f"refused: {error.message.partition('. Probably ')[2]}"
    print(
        f"  {name:28s} {found.tokens} tokens in {time.monotonic() - started:.1f} s  |gap| {found.mean_abs_gap:.2e}  "
        f"gap {found.mean_gap:+.2e} ± {found.gap_stderr:.1e}  surprise {found.surprise:+.3f} ± "
        f"{found.surprise_stderr:.3f}  {verdict}",
        flush=True,
    )
    return verdict == "passes"


async def update(engine: VllmEngine, learner: Learner, prompts: list[tuple[int, ...]]) -> None:
    """Teach the learner something, and serve it."""
    turns = [
        SampledTurn(
            None, array("q", ids[:-4]), array("q", ids[-4:]), array("d", [0.0] * 4), array("q", [0] * 4)
        )
        for ids in prompts
    ]
    sequences = [merge_turns([turn], f"r{number}")[0][0] for number, turn in enumerate(turns)]
    advantages = [1.0 if number % 2 else -1.0 for number in range(len(sequences))]
    for _ in range(3):
        learner.step(sequences, advantages)
    await engine.publish(learner, learner.updates)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--vllm", default="/tmp/vllm-venv/bin/vllm", help="the program of its own environment"
    )
    parser.add_argument("--cases", nargs="+", choices=list(CASES), default=list(CASES))
    arguments = parser.parse_args()
    ok = True
    for name in arguments.cases:
        with tempfile.TemporaryDirectory() as folder:
            ok &= asyncio.run(measure(CASES[name], arguments.vllm, Path(folder)))
    print("\nas it must be" if ok else "\nNOT as it must be")
    raise SystemExit(not ok)


if __name__ == "__main__":
    main()
