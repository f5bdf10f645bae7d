"""Workflow that runs any program with an OpenAI client as an agent.

The controller's endpoint records the conversation, so the program does not report it. All descendant processes end
with the rollout (:mod:`osmosis_ai.processes.reaper`).
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import urlsplit

from osmosis_ai.process_environment import program_environment
from osmosis_ai.processes.child_process import describe_exit, run_program
from osmosis_ai.redaction import Redactor

from .agent_workflow import AgentWorkflow
from .context import AgentWorkflowContext, RolloutContext, SampleSource, get_rollout_context
from .types import AgentWorkflowConfig, Messages, RolloutSample

_RECORDED = "/recorded"
_MOST_STDERR_CHARS = 8 * 1024
_MOST_QUOTED_CHARS = 400
_MOST_SHOWN_CHARS = 80


class CommandFailedError(RuntimeError):
    """The program failed or made no model call."""


class CommandWorkflow(AgentWorkflow[AgentWorkflowConfig]):
    """Runs a program for every rollout: ``LocalBackend(workflow=CommandWorkflow(["python", "agent.py"]), ...)``.

    The program reads the model's address from ``OPENAI_BASE_URL`` and ``OPENAI_API_KEY`` (it may use any model name)
    and the prompt's text from standard input. Its working directory is a new temporary one; ``prompt.json`` there holds
    ``messages`` and ``metadata``. It inherits only basic environment variables and no keys.

    The sample's messages are those of the last model call, including the answer. ``extra_fields["command"]`` holds
    ``exit_status`` and the end of ``stdout`` and ``stderr``.

    Args:
        command: Program and arguments. ``python`` is this process's interpreter. Arguments that name files in
            ``directory`` may be relative.
        env: Additional variables, such as keys for the program's tools. Their values are redacted in errors.
        directory: Base directory of relative arguments (default: the current directory).
        max_output_bytes: A program that writes more than this to stdout and stderr is killed and fails.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        directory: Path | None = None,
        max_output_bytes: int = 16 * 1024 * 1024,
    ) -> None:
        super().__init__()
        if isinstance(command, str) or not all(isinstance(word, str) for word in command):
            raise TypeError(
                f'`command` must be a list of strings such as ["python", "agent.py"], not {command!r}'
            )
        self._env = dict(env or {})
        self._max_output_bytes = max_output_bytes
        self._command = _resolved(list(command), (directory or Path.cwd()).resolve())
        shown = shlex.join(command)
        self._shown = shown if len(shown) <= _MOST_SHOWN_CHARS else f"{shown[:_MOST_SHOWN_CHARS]}…"

    async def run(self, ctx: AgentWorkflowContext[AgentWorkflowConfig]) -> None:
        """Run the program to completion and read the recorded conversation."""
        rollout = get_rollout_context()
        if rollout is None or not rollout.chat_completions_url:
            raise CommandFailedError(f"`{self._shown}` needs a rollout's model, and there is none")
        redact = Redactor([*filter(None, [rollout.api_key]), *self._env.values()])
        try:
            with TemporaryDirectory(prefix="osmosis-agent-", ignore_cleanup_errors=True) as name:
                prompt_file, prompt_text = Path(name, "prompt.json"), Path(name, "prompt.txt")
                prompt = {"messages": ctx.prompt, "metadata": ctx.metadata}
                prompt_file.write_text(json.dumps(prompt, default=str), encoding="utf-8")
                text = "\n\n".join(filter(None, map(_text, ctx.prompt)))
                prompt_text.write_text(text, encoding="utf-8", errors="replace")
                finished = await run_program(
                    self._command,
                    env=self._environment(rollout, ctx, prompt_file),
                    cwd=Path(name),
                    stdin=prompt_text,
                    max_output_bytes=self._max_output_bytes,
                )
        except OSError as error:  # out of processes, files or disk space
            raise CommandFailedError(
                f"`{self._shown}` cannot be started: {error.strerror or error}"
            ) from error
        stdout, stderr = redact.text(finished.stdout), redact.text(finished.stderr)
        messages: Messages = []
        if finished.flooded:
            problem = f"wrote more than {self._max_output_bytes:,} bytes, and was ended"
        elif finished.status:
            problem = f"ended with {describe_exit(finished.status)}"
        else:
            problem = "ended without an answer of the model"
            messages = await _recorded(rollout)
        if not messages:
            raise CommandFailedError(f"`{self._shown}` {problem}{_quoted(stderr or stdout)}")
        ended = {"exit_status": 0, "stdout": stdout, "stderr": stderr[-_MOST_STDERR_CHARS:]}
        rollout.set_sample_source(_Recorded(messages, ended))

    def _environment(
        self, rollout: RolloutContext, ctx: AgentWorkflowContext[AgentWorkflowConfig], prompt_file: Path
    ) -> dict[str, str]:
        env = program_environment(os.environ)
        env["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), env.get("PATH", os.defpath)])
        # A proxy must not see the model's key.
        host = urlsplit(rollout.chat_completions_url).hostname or ""
        for name in ("NO_PROXY", "no_proxy"):
            env[name] = ",".join(filter(None, [env.get(name, ""), host]))
        if ctx.artifacts_dir is not None:
            env["OSMOSIS_ARTIFACTS_DIR"] = str(ctx.artifacts_dir)
        address = rollout.chat_completions_url.rstrip("/") + _RECORDED
        return {
            **env,
            **self._env,
            "OSMOSIS_PROMPT_FILE": str(prompt_file),
            "OSMOSIS_ROLLOUT_ID": rollout.rollout_id,
            "OPENAI_BASE_URL": address,
            "OPENAI_API_BASE": address,  # the name some clients use
            "OPENAI_API_KEY": rollout.api_key or "none",
        }


class _Recorded(SampleSource):
    def __init__(self, messages: Messages, ended: dict[str, Any]) -> None:
        self._sample = RolloutSample(messages=messages, extra_fields={"command": ended})

    async def get_sample(self) -> RolloutSample:
        return self._sample


def _resolved(command: list[str], directory: Path) -> list[str]:
    """Return the command with absolute paths."""
    if not command or not command[0]:
        raise ValueError('`command` names no program; it is a list such as ["python", "agent.py"]')
    program, *arguments = command
    if program in ("python", "python3"):
        script = arguments[0] if arguments else ""
        if script.endswith(".py") and not (directory / script).is_file():
            raise ValueError(f"`command`: there is no `{script}` in {directory}")
        program = sys.executable
    elif (directory / program).is_file():
        program = str(directory / program)
    elif shutil.which(program) is None:
        raise ValueError(f"`command`: there is no program `{program}`, neither in {directory} nor in PATH")
    return [program, *(str(directory / each) if (directory / each).is_file() else each for each in arguments)]


def _text(message: Mapping[str, Any]) -> str:
    content = message.get("content")
    if isinstance(content, list):
        parts = [part.get("text") for part in content if isinstance(part, dict)]
        return "\n".join(part for part in parts if isinstance(part, str))
    return content if isinstance(content, str) else ""


async def _recorded(rollout: RolloutContext) -> Messages:
    """Return the conversation recorded by the controller; empty if the model was not called."""
    reply = await rollout.http().get(_RECORDED)
    if reply.status_code != 200:
        raise RuntimeError(f"the controller has no record of the conversation (HTTP {reply.status_code})")
    return reply.json()["messages"] or []


def _quoted(text: str) -> str:
    """Format the end of a program's output as the end of a sentence."""
    line = " ".join(text.split())
    if len(line) > _MOST_QUOTED_CHARS:
        line = "…" + line[-_MOST_QUOTED_CHARS:]
    return f": {line}" if line else ""
