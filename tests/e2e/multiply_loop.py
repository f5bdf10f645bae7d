"""The multiply agent of the sample rollout as an agent loop."""

from __future__ import annotations

from typing import Any

from main import ANSWER, INSTRUCTIONS, MAX_TURNS, MULTIPLY_TOOL, call_tool

from osmosis_ai.rollout import RolloutAgentLoop, RolloutResult


class MultiplyLoop(RolloutAgentLoop):
    """Asks the model, executes the tool calls it makes, and stops at its first plain answer."""

    name = "multiply"

    def get_tools(self, request: Any) -> list[Any]:
        return [MULTIPLY_TOOL]

    async def run(self, ctx: Any) -> RolloutResult:
        messages: list[dict[str, Any]] = [INSTRUCTIONS, *ctx.request.messages]
        for _ in range(MAX_TURNS):
            reply = await ctx.chat(messages, temperature=1.0)
            messages.append(reply.message)
            if not reply.has_tool_calls:
                break
            messages += [
                {"role": "tool", "tool_call_id": call["id"], "content": call_tool(call["function"])}
                for call in reply.tool_calls
            ]
        return ctx.complete(messages)


def product(messages: list[dict[str, Any]], ground_truth: str, metadata: dict[str, Any]) -> float:
    said = "\n".join(str(m.get("content")) for m in messages if m["role"] == "assistant")
    answers = ANSWER.findall(said)
    return float(bool(answers) and answers[-1].replace(",", "") == ground_truth)


agent_loop = MultiplyLoop()
eval_fns = [product]
