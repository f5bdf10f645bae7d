"""Any program that speaks OpenAI's API, as an agent.

A program of its own is started for every rollout, with the rollout's model as its OpenAI endpoint and no other key. The
conversation is what the controller's endpoint recorded, so the program needs to report nothing. Whatever it does,
none of the processes that came of it is left when the rollout is over (:mod:`osmosis_ai.supervision.reaper`).
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from osmosis_ai.process_environment import program_environment
from osmosis_ai.redaction import Redactor
from osmosis_ai.supervision.child_process import exit_words
from osmosis_ai.supervision.program import FinishedProgram, run_program

from .agent_workflow import AgentWorkflow
from .context import AgentWorkflowContext, RolloutContext, SampleSource, get_rollout_context
from .types.config import AgentWorkflowConfig
from .types.sample import Messages, RolloutSample

MAX_OUTPUT_BYTES = 16 * 1024 * 1024
COMMAND_KEY = "command"
"""What the sample's ``extra_fields`` call how the program ended and what it wrote."""

_RECORDED = "/recorded"
_PROMPT_FILE, _PROMPT_TEXT = "prompt.json", "prompt.txt"
_PYTHONS = ("python", "python3")
_MOST_STDERR_CHARS = 8 * 1024
_MOST_QUOTED_CHARS = 400
_MOST_SHOWN_CHARS = 80


class CommandFailedError(RuntimeError):
    """The program failed, or asked no model."""


class CommandWorkflow(AgentWorkflow[AgentWorkflowConfig]):
    """Runs a program for every rollout: ``LocalBackend(workflow=CommandWorkflow(["python", "agent.py"]), ...)``.

    The program finds the model as any OpenAI client does (``OPENAI_BASE_URL``, ``OPENAI_API_KEY``; any model name will
    do) and the prompt's text on its standard input; ``prompt.json`` in its working directory, a new and temporary one,
    holds ``messages`` and ``metadata``. Of this process's environment it gets what makes programs run, and no key.

    The sample's messages are those of its last model call, with the answer. What it wrote is in the sample's
    ``extra_fields["command"]``: ``exit_status``, ``stdout`` and ``stderr``, of each the end.

    Args:
        command: program and arguments. ``python`` is the interpreter of this process; arguments that are files of
            ``directory`` may be given relative to it.
        env: variables the program gets besides, such as keys of its tools; their values are hidden in errors.
        directory: where relative arguments are looked up; by default the directory this process runs in, the
            rollout's own.
        max_output_bytes: a program that writes more to stdout and stderr is ended, and has failed.

    Raises:
        TypeError: ``command`` is no list of strings.
        ValueError: it is empty, or names a program or a script that is not there.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        directory: Path | None = None,
        max_output_bytes: int = MAX_OUTPUT_BYTES,
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
        """Run the program to its end, and take what it said to the model.

        Raises:
            CommandFailedError: it ended with an error, wrote too much, or asked no model.
        """
        rollout = get_rollout_context()
        if rollout is None or not rollout.chat_completions_url:
            raise CommandFailedError(f"`{self._shown}` needs a rollout's model, and there is none")
        redact = Redactor([*filter(None, [rollout.api_key]), *self._env.values()])
        try:
            with _working_directory(ctx) as place:
                finished = await run_program(
                    self._command,
                    env=self._environment(rollout, ctx, place),
                    cwd=place,
                    stdin=place / _PROMPT_TEXT,
                    max_output_bytes=self._max_output_bytes,
                )
        except OSError as error:  # no process, no file or no space to be had
            raise CommandFailedError(
                f"`{self._shown}` cannot be started: {error.strerror or error}"
            ) from error
        stdout, stderr = redact.text(finished.stdout), redact.text(finished.stderr)
        if reason := self._why_failed(finished):
            raise CommandFailedError(reason + _quoted(stderr or stdout))
        messages = await _recorded(rollout)
        if not messages:
            raise CommandFailedError(
                f"`{self._shown}` ended without an answer of the model" + _quoted(stderr or stdout)
            )
        written = {"stdout": stdout, "stderr": stderr[-_MOST_STDERR_CHARS:]}
        rollout.set_sample_source(_Recorded(messages, {"exit_status": finished.status, **written}))

    def _why_failed(self, finished: FinishedProgram) -> str | None:
        if finished.flooded:
            return f"`{self._shown}` wrote more than {self._max_output_bytes:,} bytes, and was ended"
        return f"`{self._shown}` ended with {exit_words(finished.status)}" if finished.status else None

    def _environment(
        self, rollout: RolloutContext, ctx: AgentWorkflowContext[AgentWorkflowConfig], place: Path
    ) -> dict[str, str]:
        env = program_environment(os.environ)
        env["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), env.get("PATH", os.defpath)])
        # A proxy must not get to see the model's key.
        host = urlsplit(rollout.chat_completions_url).hostname or ""
        for name in ("NO_PROXY", "no_proxy"):
            env[name] = ",".join(filter(None, [env.get(name, ""), host]))
        if ctx.artifacts_dir is not None:
            env["OSMOSIS_ARTIFACTS_DIR"] = str(ctx.artifacts_dir)
        address = rollout.chat_completions_url.rstrip("/") + _RECORDED
        return {
            **env,
            **self._env,
            "OSMOSIS_PROMPT_FILE": str(place / _PROMPT_FILE),
            "OSMOSIS_ROLLOUT_ID": rollout.rollout_id,
            "OPENAI_BASE_URL": address,
            "OPENAI_API_BASE": address,  # as some clients call it
            "OPENAI_API_KEY": rollout.api_key or "none",
        }


class _Recorded(SampleSource):
    def __init__(self, messages: Messages, ended: dict[str, Any]) -> None:
        self._sample = RolloutSample(messages=messages, extra_fields={COMMAND_KEY: ended})

    async def get_sample(self) -> RolloutSample:
        return self._sample


def _resolved(command: list[str], directory: Path) -> list[str]:
    """Return the command as it can be run from anywhere.

    Raises:
        ValueError: it is empty, or names a program or a script that is not there.
    """
    if not command or not command[0]:
        raise ValueError('`command` names no program; it is a list such as ["python", "agent.py"]')
    program, *arguments = command
    if program in _PYTHONS:
        script = arguments[0] if arguments else ""
        if script.endswith(".py") and not (directory / script).is_file():
            raise ValueError(f"`command`: there is no `{script}` in {directory}")
        program = sys.executable
    elif (directory / program).is_file():
        program = str(directory / program)
    elif shutil.which(program) is None:
        raise ValueError(f"`command`: there is no program `{program}`, neither in {directory} nor in PATH")
    return [program, *(str(directory / each) if (directory / each).is_file() else each for each in arguments)]


@contextmanager
def _working_directory(ctx: AgentWorkflowContext[AgentWorkflowConfig]) -> Iterator[Path]:
    """A directory with the prompt in it, for as long as the program runs."""
    place = Path(tempfile.mkdtemp(prefix="osmosis-agent-"))
    try:
        prompt = {"messages": ctx.prompt, "metadata": ctx.metadata}
        (place / _PROMPT_FILE).write_text(json.dumps(prompt, default=str), encoding="utf-8")
        text = "\n\n".join(filter(None, map(_text, ctx.prompt)))
        (place / _PROMPT_TEXT).write_text(text, encoding="utf-8", errors="replace")
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _text(message: Mapping[str, Any]) -> str:
    content = message.get("content")
    if isinstance(content, list):
        parts = [part.get("text") for part in content if isinstance(part, dict)]
        return "\n".join(part for part in parts if isinstance(part, str))
    return content if isinstance(content, str) else ""


async def _recorded(rollout: RolloutContext) -> Messages | None:
    """Return the rollout's conversation as the controller recorded it.

    Raises:
        RuntimeError: the controller does not record.
    """
    reply = await rollout.http().get(_RECORDED)
    if reply.status_code != 200:
        raise RuntimeError(f"the controller has no record of the conversation (HTTP {reply.status_code})")
    messages: Messages | None = reply.json()["messages"]
    return messages


def _quoted(text: str) -> str:
    """The end of what a program wrote, as the end of a sentence."""
    line = " ".join(text.split())
    if len(line) > _MOST_QUOTED_CHARS:
        line = "…" + line[-_MOST_QUOTED_CHARS:]
    return f": {line}" if line else ""
