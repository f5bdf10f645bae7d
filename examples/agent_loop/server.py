"""A calculator as an agent loop: it lets the model call tools until the model has an answer.

osmosis eval -m server:agent_loop -d test_data.jsonl --eval-fn rewards:compute_reward --model osmosis/tiny --n 4
osmosis eval -m server:agent_loop -d test_data.jsonl --eval-fn rewards:compute_reward --model openai/gpt-5-mini
osmosis test -m server:agent_loop -d test_data.jsonl --interactive
osmosis serve -m server:agent_loop --local
python -m server
"""

from __future__ import annotations

import os
import time
from typing import Any

from tools import TOOLS, calculate

from osmosis_ai.rollout import (
    OpenAIFunctionToolSchema,
    RolloutAgentLoop,
    RolloutContext,
    RolloutRequest,
    RolloutResult,
    ToolArgumentError,
    create_app,
    create_tool_error_result,
    create_tool_result,
    execute_tool_calls,
    get_tool_call_info,
    serialize_tool_result,
)


class CalculatorAgentLoop(RolloutAgentLoop):
    """Asks the model, runs the tools that it calls, and asks again, up to the request's number of turns."""

    name = "calculator"

    def get_tools(self, request: RolloutRequest) -> list[OpenAIFunctionToolSchema]:
        """Offer the tools that the row names in its column `tools`; all of them where it has none."""
        wanted = request.metadata.get("tools")
        return [tool for tool in TOOLS if wanted is None or tool.function.name in wanted]

    async def run(self, ctx: RolloutContext) -> RolloutResult:
        messages = list(ctx.request.messages)
        for turn in range(ctx.request.max_turns):
            reply = await ctx.chat(messages, **ctx.request.completion_params)
            messages.append(reply.message)
            ctx.log_event("reply", turn=turn, message=reply.message, finish_reason=reply.finish_reason)
            if reply.finish_reason == "length":
                return ctx.complete(messages, finish_reason="max_tokens")
            if not reply.has_tool_calls:
                return ctx.complete(messages, finish_reason="stop")
            messages += await execute_tool_calls(reply.tool_calls, lambda call: self._run_tool(ctx, call))
        return ctx.complete(messages, finish_reason="max_turns")

    async def _run_tool(self, ctx: RolloutContext, call: dict[str, Any]) -> dict[str, Any]:
        """Run one call; what goes wrong with it is told to the model, which may do better next time."""
        started = time.monotonic()
        try:
            call_id, name, arguments = get_tool_call_info(call)
            result = await calculate(name, arguments)
            return create_tool_result(call_id, serialize_tool_result(result))
        except ToolArgumentError as error:
            return create_tool_error_result(error.tool_call_id, str(error))
        except ValueError as error:
            return create_tool_error_result(call.get("id", "unknown"), str(error))
        finally:
            ctx.record_tool_call(latency_ms=(time.monotonic() - started) * 1000)


agent_loop = CalculatorAgentLoop()

# For `python -m server`, `uvicorn server:app`, and wherever else an ASGI application is served.
app = create_app(
    agent_loop,
    api_key=os.environ.get("ROLLOUT_SERVER_API_KEY"),
    debug_dir=os.environ.get("ROLLOUT_DEBUG_DIR"),
)

if __name__ == "__main__":
    import uvicorn

    uvicorn.run(
        app,
        host=os.environ.get("ROLLOUT_SERVER_HOST", "127.0.0.1"),
        port=int(os.environ.get("ROLLOUT_SERVER_PORT", "9000")),
    )
