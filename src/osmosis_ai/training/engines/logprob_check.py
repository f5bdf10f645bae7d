"""Check before the first step that the engine samples from the distribution that the learner computes.

The engine continues some of the run's prompts at the run's settings, and the learner computes the probabilities of
the same tokens. Two signs show a different distribution:

- The engine's log-probabilities differ from the learner's. Rounding scatters around 0. A truncated distribution
  (top-p, top-k, min-p) has higher probabilities on the tokens it keeps, so all its differences have the same sign.
- The tokens are less or more surprising to the learner than its own samples. The surprise -log p of a sample has
  a mean (the entropy) and a variance that are known at every position. This detects an engine that truncates but
  reports the untruncated probabilities.

Neither sign is visible in rewards: such a run still learns, only worse.
"""

from __future__ import annotations

import asyncio
import math
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, Any

from osmosis_ai.errors import OsmosisError
from osmosis_ai.inference.chat import TemplateError
from osmosis_ai.inference.engine import Generation, random_stream
from osmosis_ai.inference.openai_api import TokenFeed
from osmosis_ai.training.objective.sequences import SampledTurn, TokenSequence, merge_turns

if TYPE_CHECKING:
    from osmosis_ai.config.training import TrainingSettings
    from osmosis_ai.datasets import DatasetRow
    from osmosis_ai.inference.chat import ChatFormat
    from osmosis_ai.training.engines.policy_engine import PolicyEngine
    from osmosis_ai.training.learner.policy import Policy, SequenceScores

# Least number of tokens to draw, and the most per continuation.
TOKENS = 512
CONTINUATION_TOKENS = 64
PROMPTS = 32
MOST_CONTINUATIONS = 2 * TOKENS
# Mean gap in nats a token. In float32 the two agree to 1e-5; in bfloat16 rounding alone is about 0.01.
MEAN_GAP_FLOAT32, MEAN_GAP_BFLOAT16 = 1e-3, 3e-2
# Allowed distance of a mean from its expected value, in standard errors.
STANDARD_ERRORS = 4.0
# A mean signed gap below this is rounding, which may be biased, and no truncation.
SIGNED_FLOOR_FLOAT32, SIGNED_FLOOR_BFLOAT16 = 1e-5, 1e-3
# The surprise of tokens is far from normally distributed: a few unlikely ones decide its mean.
SURPRISE_STANDARD_ERRORS = 5.0

_REMEDY = (
    "start a server with `--generation-config vllm --logprobs-mode processed_logprobs`, and check that nothing between "
    "the trainer and its model sets temperature, top_p, top_k, min_p or a penalty"
)


class DistributionMismatchError(OsmosisError):
    """The engine does not sample from the learner's distribution."""


@dataclass(frozen=True)
class Probe:
    tokens: int
    mean_abs_gap: float
    mean_gap: float
    gap_stderr: float
    surprise: float
    surprise_stderr: float
    server: object = None

    def sentence(self) -> str:
        source = "" if self.server is None else f" of {self.server}"
        said = (
            f"over {self.tokens} sampled tokens{source}, the log-probabilities differ by {self.mean_abs_gap:.2g} nats on average "
            f"(signed: {self.mean_gap:+.2g} ± {self.gap_stderr:.1g})"
        )
        if math.isinf(self.surprise_stderr):  # the learner's entropies are unknown
            return said
        surprise = f"{self.surprise:+.2g} ± {self.surprise_stderr:.1g}"
        return f"{said}, and the tokens' mean surprise differs from the learner's entropy by {surprise} nats"

    def require_agreement(self, *, float32: bool, truncated: bool = False, adapter: bool = False) -> None:
        """Refuse a distribution that differs from the learner's; with ``adapter``, it agreed before a change of it."""
        limit = MEAN_GAP_FLOAT32 if float32 else MEAN_GAP_BFLOAT16
        floor = SIGNED_FLOOR_FLOAT32 if float32 else SIGNED_FLOOR_BFLOAT16
        if not math.isfinite(self.mean_abs_gap):
            raise DistributionMismatchError(
                f"the log-probabilities of the engine or the learner are not finite: {self.sentence()}.",
                hint="check for damaged weights, or numbers outside the range of the data type",
            )
        one_sided = abs(self.mean_gap) > max(floor, STANDARD_ERRORS * self.gap_stderr)
        surprising = not truncated and abs(self.surprise) > SURPRISE_STANDARD_ERRORS * self.surprise_stderr
        hidden = ", and reports other probabilities than it samples with"
        if one_sided and self.mean_gap > 0.9 * self.mean_abs_gap:
            cause = "leaves out unlikely tokens (top_p, top_k or min_p), since all gaps have the same sign"
        elif self.mean_abs_gap > limit or one_sided:
            cause = (
                "samples with a penalty (repetition, presence, frequency), at another temperature, from a truncated "
                "distribution, or with other weights"
            )
        elif surprising and self.surprise < 0:
            cause = (
                f"leaves out unlikely tokens (top_p, top_k, min_p) or samples at a lower temperature{hidden}"
            )
        elif surprising:
            cause = f"samples at a higher temperature, or with a penalty{hidden}"
        else:
            return
        remedy = _REMEDY
        if adapter:
            cause = "ignores the adapter, or applies it to only some of its weights"
            remedy = (
                "use a newer vLLM; a mixture of experts needs 0.22.1 and `--enable-mixed-moe-lora-format`, or "
                "[advanced].lora_targets without experts"
            )
        raise DistributionMismatchError(
            f"the engine's distribution differs from the learner's: {self.sentence()}. Probably, the engine {cause}.",
            hint=remedy,
        )


async def probe(
    engine: PolicyEngine, learner: Policy, prompts: Sequence[tuple[int, ...]], settings: TrainingSettings
) -> list[Probe]:
    """Have each server of the engine continue ``prompts`` by at least :data:`TOKENS` tokens, and compare."""
    found = []
    for server in engine.servers:  # one of several would not show in a mean
        sequences = await _continued(engine, server, prompts, settings)
        compared = compare(sequences, await asyncio.to_thread(learner.scores, sequences))
        found.append(replace(compared, server=server if len(engine.servers) > 1 else None))
    return found


async def _continued(
    engine: PolicyEngine, server: object, prompts: Sequence[tuple[int, ...]], settings: TrainingSettings
) -> list[TokenSequence]:
    sequences: list[TokenSequence] = []
    drawn = 0
    while drawn < TOKENS and len(sequences) < MOST_CONTINUATIONS:
        first = len(sequences)
        # The number that suffices if further rows are as long as the earlier ones.
        wanted = max(PROMPTS, math.ceil((TOKENS - drawn) * first / drawn)) if drawn else PROMPTS
        generations = []
        for number in range(first, min(first + wanted, MOST_CONTINUATIONS)):
            prompt = prompts[number % len(prompts)]
            room = engine.model.config.max_positions - len(prompt)
            generation = Generation(
                prompt=prompt,
                max_tokens=max(1, min(CONTINUATION_TOKENS, settings.max_response_length, room)),
                stream=random_stream(settings.seed, number + 1),
                stop_tokens=engine.model.config.end_token_ids,
                temperature=settings.rollout_temperature,
                top_p=settings.rollout_top_p,
                rollout=server,
            )
            generations.append(generation)
        sequences += await _drawn(engine, generations)
        drawn = sum(sum(sequence.mask) for sequence in sequences)
    return sequences


def compare(sequences: Sequence[TokenSequence], scores: Sequence[SequenceScores]) -> Probe:
    import numpy as np

    def sampled(values: Sequence[Sequence[float]]) -> Any:
        return np.concatenate(
            [np.array(v)[np.array(s.mask, dtype=bool)] for v, s in zip(values, sequences, strict=True)]
        )

    logged = sampled([sequence.logprobs for sequence in sequences])
    logprobs = sampled([known.logprobs for known in scores])
    entropies = [known.entropies for known in scores if known.entropies is not None]
    variances = [known.variances for known in scores if known.variances is not None]
    gaps, count = logged - logprobs, len(logged)
    return Probe(
        tokens=count,
        mean_abs_gap=float(np.abs(gaps).mean()),
        mean_gap=float(gaps.mean()),
        gap_stderr=float(gaps.std(ddof=1) / math.sqrt(count)),
        surprise=float((-logprobs - sampled(entropies)).mean()) if entropies else 0.0,
        surprise_stderr=float(math.sqrt(sampled(variances).sum()) / count) if variances else math.inf,
    )


def probe_prompts(rows: Iterable[DatasetRow], chat: ChatFormat, *, longest: int) -> list[tuple[int, ...]]:
    """Return up to :data:`PROMPTS` different prompts of at most ``longest`` tokens, as an agent would begin."""
    found: dict[tuple[int, ...], None] = {}
    openings = [row.messages for row in islice(rows, 4 * PROMPTS) if row.messages]
    for messages in [*openings, [{"role": "user", "content": "Tell me something about yourself."}]]:
        try:
            ids = tuple(chat.encode(chat.render(messages, ())))
        except TemplateError:
            continue
        if 0 < len(ids) <= longest:
            found[ids] = None
        if len(found) >= PROMPTS:
            break
    return list(found)


async def _drawn(engine: PolicyEngine, generations: Sequence[Generation]) -> list[TokenSequence]:
    feed = TokenFeed(engine, generations, every_token=False)
    turns = [
        SampledTurn(None, array("q", generation.prompt), array("q"), array("d"), array("q"))
        for generation in generations
    ]
    unfinished = len(turns)
    try:
        while unfinished:
            for index, emission in await feed.read():
                turn, token = turns[index], emission.token
                turn.sampled.append(token.id)
                turn.logprobs.append(token.logprob)
                turn.versions.append(token.version)
                unfinished -= emission.finish_reason is not None
    finally:
        feed.close()
    return [merge_turns([turn], f"probe-{number}")[0][0] for number, turn in enumerate(turns)]
