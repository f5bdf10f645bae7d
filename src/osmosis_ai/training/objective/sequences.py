"""Convert a rollout's calls to token sequences for the learner.

A turn is one call: the tokens the model read and the tokens it sampled. A turn that continues an
earlier one reads that turn's tokens and then new ones (a tool's answer, the next question). Both form one
sequence, whose mask marks the sampled tokens:

    turn 1  reads  What is 12 * 34?          samples  <tool_call> ... <|im_end|>
    turn 2  reads  ... \\n tool_response 408   samples  408 <|im_end|>
    ids     What is 12 * 34? <tool_call> ... <|im_end|> \\n tool_response 408 ... 408 <|im_end|>
    mask    0 0 0 0 0 0      1 ...           1          0 ...                     1   1

If two turns continue the same one, or a turn continues none because the agent rewrote its history,
the rollout forks into a new sequence that repeats what was read. A sampled token is trained on once; its repetitions
count as read.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

# The version of a token that no policy sampled.
NOT_SAMPLED = -1


@dataclass(eq=False)
class SampledTurn:
    parent: SampledTurn | None
    given: array[int]
    sampled: array[int]
    logprobs: array[float]
    versions: array[int]

    def ids(self) -> list[int]:
        """Return all tokens from the beginning of the conversation to the end of this turn."""
        path: list[SampledTurn] = []
        turn: SampledTurn | None = self
        while turn is not None:
            path.append(turn)
            turn = turn.parent
        return [token for turn in reversed(path) for part in (turn.given, turn.sampled) for token in part]


@dataclass
class TokenSequence:
    """A conversation in tokens; the four lists have one entry for each."""

    rollout_id: str
    ids: list[int] = field(default_factory=list)
    mask: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)

    def _give(self, tokens: Sequence[int]) -> None:
        self.ids.extend(tokens)
        self.mask.extend([0] * len(tokens))
        self.logprobs.extend([0.0] * len(tokens))
        self.versions.extend([NOT_SAMPLED] * len(tokens))

    def _sample(self, turn: SampledTurn) -> None:
        self.ids.extend(turn.sampled)
        self.mask.extend([1] * len(turn.sampled))
        self.logprobs.extend(turn.logprobs)
        self.versions.extend(turn.versions)


def merge_turns(turns: Sequence[SampledTurn], rollout_id: str = "") -> tuple[list[TokenSequence], int]:
    """Join turns to sequences."""
    sequences: list[TokenSequence] = []
    ending_with: dict[SampledTurn, TokenSequence] = {}
    for turn in turns:
        sequence = ending_with.pop(turn.parent, None) if turn.parent else None
        if sequence is None:
            sequence = TokenSequence(rollout_id)
            sequences.append(sequence)
            if turn.parent:
                sequence._give(turn.parent.ids())
        sequence._give(turn.given)
        sequence._sample(turn)
        ending_with[turn] = sequence
    return sequences, max(0, len(sequences) - 1)
