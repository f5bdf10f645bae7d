"""Every command a reader can copy from the README and the docs works.

Fenced ``bash`` blocks run in order, page by page, in a scratch copy of the sample workspace.
A comment above a block changes that:

- ``<!-- check-only: why -->``: not run (it needs a key, a GPU or an install); each ``osmosis``
  command line in it is still checked against that command's ``--help``.
- ``<!-- new-directory -->``: starts in an empty directory.
- ``<!-- background -->``: goes on until the page ends; the next block runs once it has printed a line.
- ``<!-- file: PATH -->``: the block is the content of that file.
"""

from __future__ import annotations

import io
import os
import re
import shlex
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, redirect_stdout
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
from tests.docs.test_guides import PAGES as GUIDES
from tests.e2e.agent_workspace import copy_sample_workspace
from tests.warm_osmosis import warm_osmosis

from osmosis_ai.cli.main import main

REPOSITORY = Path(__file__).parents[2]
PAGES = [REPOSITORY / "README.md", *sorted(set((REPOSITORY / "docs").rglob("*.md")) - set(GUIDES))]
BLOCK = re.compile(
    r"(?:^<!-- (?P<directive>[a-z-]+)(?:: (?P<argument>[^>]*?))? -->\n)?"
    r"^```(?P<language>\w*)\n(?P<body>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Block:
    language: str
    body: str
    directive: str | None
    argument: str | None


def blocks_of(page: Path) -> list[Block]:
    return [
        Block(match["language"], match["body"], match["directive"], match["argument"])
        for match in BLOCK.finditer(page.read_text())
    ]


def command_lines(block: Block) -> list[str]:
    joined = block.body.replace("\\\n", " ")
    return [line.strip() for line in joined.splitlines() if re.match(r"\s*osmosis\b", line)]


@cache
def help_of(*command: str) -> str:
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(io.StringIO()) as said:
        patch.setenv("COLUMNS", "200")
        patch.setenv("TERM", "dumb")
        assert main([*command, "--help"]) == 0
    return said.getvalue()


def check_against_help(line: str) -> None:
    words = shlex.split(line.split("||")[0].split("|")[0], comments=True)[1:]
    command: list[str] = []
    for word in words:
        # `eval -m` is a command that begins as an option does and is not among those of the group's help.
        named = not word.startswith("-") and re.search(
            rf"^[\s│]*{re.escape(word)}\s", help_of(*command), re.MULTILINE
        )
        if not named and (*command, word) != ("eval", "-m"):
            break
        command.append(word)
    known = set(re.findall(r"(?<!\S)--?[a-zA-Z][\w-]*", help_of(*command) + help_of()))
    used = {word.split("=")[0] for word in words if word.startswith("-")}
    assert used <= known, (
        f"`{line}` uses {used - known}, which `osmosis {' '.join(command)} --help` does not name"
    )


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_option_a_page_names_exists(page: Path) -> None:
    for block in blocks_of(page):
        if block.language == "bash":
            for line in command_lines(block):
                check_against_help(line)


def runnable(page: Path) -> bool:
    return any(block.language == "bash" and block.directive != "check-only" for block in blocks_of(page))


@pytest.mark.e2e
@pytest.mark.parametrize("page", [page for page in PAGES if runnable(page)], ids=lambda page: page.name)
def test_every_command_block_of_a_page_runs(page: Path, tmp_path: Path) -> None:
    workspace = tmp_path / "workspace"
    copy_sample_workspace(workspace)
    make_small(workspace)
    port = free_port()
    program = tmp_path / "bin" / "osmosis"
    program.parent.mkdir()
    warm = warm_osmosis(torch=page.parent.name == "guides" and page.name == "training.md")
    program.write_text(f'#!/bin/sh\nexec {shlex.join(warm)} "$@"\n')
    program.chmod(0o755)
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("OSMOSIS_")},
        "PATH": os.pathsep.join((str(program.parent), str(Path(sys.executable).parent), os.environ["PATH"])),
        "OSMOSIS_CONFIG_DIR": str(tmp_path / "config"),
        "OSMOSIS_CACHE_DIR": str(tmp_path / "cache"),
        "OSMOSIS_HOME": str(tmp_path / "home"),
        "OSMOSIS_TOKEN_STORE": "file",
        "OSMOSIS_PLATFORM_PORT": port,
    }
    with ExitStack() as background:
        run_blocks(page, workspace, tmp_path, environment, background)


def make_small(workspace: Path) -> None:
    """Let the sample evaluate and train as its configs say, on fewer rows: that the commands work is shown by few."""
    for config, shorter in {
        "eval": {"limit = 100": "limit = 10"},
        "training": {
            "n_samples_per_prompt = 8": "n_samples_per_prompt = 4",
            "batch_size = 16": "batch_size = 4",
        },
    }.items():
        path = workspace / "configs" / config / "multiply.toml"
        text = path.read_text()
        for key, small in shorter.items():
            assert key in text
            text = text.replace(key, small)
        path.write_text(text)
    rows = workspace / "data" / "multiply_train.jsonl"
    rows.write_text("".join(rows.read_text().splitlines(keepends=True)[:120]))


def run_blocks(
    page: Path, workspace: Path, scratch: Path, environment: Mapping[str, str], background: ExitStack
) -> None:
    directory_note = scratch / "directory"
    directory = workspace
    for block in blocks_of(page):
        # Pages name the default port of a platform; tests side by side cannot all have it.
        body = block.body.replace("8733", environment["OSMOSIS_PLATFORM_PORT"])
        if block.directive == "file":
            assert block.argument is not None
            (directory / block.argument).write_text(body)
        if block.language != "bash" or block.directive == "check-only":
            continue
        if block.directive == "background":
            background.enter_context(running(body, directory, environment))
            continue
        if block.directive == "new-directory":
            directory = scratch / "empty"
            directory.mkdir()
        # The directory a block ends in is where the next one starts, as in a reader's terminal.
        script = f"set -e\n{body}\npwd > {shlex.quote(str(directory_note))}\n"
        result = subprocess.run(
            ["bash", "-c", script],
            cwd=directory,
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
            stdin=subprocess.DEVNULL,
        )
        assert result.returncode == 0, f"{body}\n{result.stdout}\n{result.stderr}"
        directory = Path(directory_note.read_text().strip())


@contextmanager
def running(command: str, directory: Path, environment: Mapping[str, str]) -> Iterator[None]:
    process = subprocess.Popen(
        ["bash", "-c", f"exec {command}"],
        cwd=directory,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    with process:
        try:
            assert process.stdout.readline(), f"{command} ended at once"
            yield
        finally:
            process.terminate()


def free_port() -> str:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return str(found.getsockname()[1])


@pytest.mark.parametrize("page", sorted({*PAGES, *GUIDES}), ids=lambda page: page.name)
def test_every_relative_link_leads_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\((?!https?://|#)([^)#]+)", page.read_text()):
        assert (page.parent / target).exists(), f"{page.name} links to {target}, which does not exist"
