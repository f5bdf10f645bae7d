"""One sample with its conversation, as the demo shows it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_SAMPLES_READ = 40
_FILE = re.compile(r"row_(\d+)_run_(\d+)\.json")


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a sample's conversation.

    ``label`` says more about who speaks: the tool that answered, the tools that were called.
    """

    role: str
    text: str
    label: str = ""


@dataclass(frozen=True, slots=True)
class Sample:
    """One scored sample with its conversation."""

    row_index: int
    run_index: int
    reward: float
    label: str | None
    trajectory: Path
    messages: tuple[Message, ...]

    @property
    def used_a_tool(self) -> bool:
        """Whether a tool answered in it."""
        return any(message.role == "tool" for message in self.messages)


def most_telling_sample(results: Path) -> Sample | None:
    """Return the best of the first scored samples whose conversation was kept; one that used a tool, if any did.

    Args:
        results: the directory of a finished evaluation.
    """
    found = {
        (int(match[1]), int(match[2])): path
        for path in (results / "trajectories").glob("*.json")
        if (match := _FILE.fullmatch(path.name))
    }
    read = [sample for key in sorted(found)[:_SAMPLES_READ] if (sample := read_sample(found[key], *key))]
    return max(read, key=lambda sample: (sample.reward, sample.used_a_tool), default=None)


def read_sample(path: Path, row: int, run: int) -> Sample | None:
    """Read the conversation of a sample; None when it was not scored."""
    trajectory = json.loads(path.read_bytes())
    facts = trajectory.get("extra", {}).get("osmosis", {})
    if not isinstance(facts.get("reward"), (int, float)):
        return None
    return Sample(
        row_index=row,
        run_index=run,
        reward=float(facts["reward"]),
        label=facts.get("label"),
        trajectory=path,
        messages=tuple(message for step in trajectory["steps"] for message in _messages_of(step)),
    )


def _messages_of(step: Mapping[str, Any]) -> Iterator[Message]:
    calls = step.get("tool_calls") or []
    names = {call["tool_call_id"]: call["function_name"] for call in calls}
    said = [_text(step.get("message"))] if step.get("message") else []
    if calls or said:
        role = "assistant" if step["source"] == "agent" else step["source"]
        yield Message(role, "\n".join([*said, *map(_call_text, calls)]), "calls a tool" if calls else "")
    for result in (step.get("observation") or {}).get("results", []):
        yield Message("tool", _text(result.get("content")), names.get(result.get("source_call_id"), ""))


def _call_text(call: Mapping[str, Any]) -> str:
    arguments = call.get("arguments")
    if not isinstance(arguments, dict):
        return f"{call['function_name']}({arguments})"
    given = ", ".join(f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in arguments.items())
    return f"{call['function_name']}({given})"


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "\n".join(
            str(part.get("text", "")) if isinstance(part, dict) else str(part) for part in content
        )
    return "" if content is None else json.dumps(content, ensure_ascii=False)
