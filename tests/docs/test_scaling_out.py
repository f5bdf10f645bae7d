"""The files for other schedulers parse, and what they start exists; they are not run under these schedulers here."""

from __future__ import annotations

import configparser
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from tests.docs.test_documented_commands import blocks_of, check_against_help

from osmosis_ai.config.execution import execution_issues

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

pytestmark = pytest.mark.integration

REPOSITORY = Path(__file__).parents[2]
FILES = REPOSITORY / "examples" / "scaling-out"
UNITS = sorted(FILES.glob("*.service"))
PAGE = (REPOSITORY / "docs" / "platform" / "workers.md").read_text(encoding="utf-8")
PLATFORM = "/opt/osmosis/.venv/bin/osmosis platform start --plain"


def unit(path: Path) -> configparser.RawConfigParser:
    # A unit may give a key several times.
    parser = configparser.RawConfigParser(strict=False, delimiters=("=",), comment_prefixes=("#",))
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string(path.read_text(encoding="utf-8"))
    return parser


def kubernetes_command() -> str:
    job = yaml.safe_load((FILES / "kubernetes-job.yaml").read_text(encoding="utf-8"))
    (container,) = job["spec"]["template"]["spec"]["containers"]
    return shlex.join([*container["command"], *container["args"]])


def slurm_command() -> str:
    script = (FILES / "slurm-worker.sh").read_text(encoding="utf-8").replace("\\\n", " ")
    return script[script.index("exec ") :].removeprefix("exec ").strip()


def worker_commands() -> dict[str, str]:
    return {
        "systemd": unit(FILES / "osmosis-worker.service")["Service"]["ExecStart"],
        "kubernetes": kubernetes_command(),
        "slurm": slurm_command(),
    }


def options(command: str) -> dict[str, str]:
    words = shlex.split(command.replace("=", " "))
    return {
        word: words[place + 1] if place + 1 < len(words) and not words[place + 1].startswith("--") else ""
        for place, word in enumerate(words)
        if word.startswith("--")
    }


def test_the_page_names_every_file_and_says_which_were_not_run() -> None:
    assert {path.name for path in FILES.iterdir()} == set(
        re.findall(r"\]\(\.\./\.\./examples/scaling-out/([^)]+)\)", PAGE)
    )
    assert "checked but not run" in PAGE


@pytest.mark.parametrize(("name", "count"), [("platform/workers.md", 3), ("reference/config.md", 1)])
def test_the_execution_tables_of_a_page_are_valid(name: str, count: int) -> None:
    blocks = blocks_of(REPOSITORY / "docs" / name)
    tables = [tomllib.loads(block.body) for block in blocks if "[advanced.execution]" in block.body]
    assert len(tables) == count
    assert [issue for table in tables for issue in execution_issues(table)] == []


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_a_unit_parses_and_stops_its_main_process_first(path: Path, tmp_path: Path) -> None:
    parsed = unit(path)
    assert parsed.sections() == ["Unit", "Service", "Install"]
    assert parsed["Service"]["KillMode"] == "mixed"
    if shutil.which("systemd-analyze"):
        # Whether programs and users exist is a question to another machine.
        text = path.read_text(encoding="utf-8").replace("/opt/osmosis/.venv/bin/osmosis", "/bin/true")
        copy = tmp_path / path.name
        copy.write_text(re.sub(r"^User=.*$", "User=root", text, flags=re.MULTILINE))
        done = subprocess.run(
            ["systemd-analyze", "verify", "--man=no", str(copy)], capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stderr


def test_the_page_about_one_machine_shows_the_same_unit() -> None:
    page = (REPOSITORY / "docs" / "platform" / "operate.md").read_text(encoding="utf-8")
    assert (FILES / "osmosis-platform.service").read_text(encoding="utf-8") in page
    assert unit(FILES / "osmosis-platform.service")["Service"]["ExecStart"] == PLATFORM


def test_the_job_of_kubernetes_is_one_that_ends_and_asks_for_what_it_says_it_has() -> None:
    job = yaml.safe_load((FILES / "kubernetes-job.yaml").read_text(encoding="utf-8"))
    assert (job["apiVersion"], job["kind"]) == ("batch/v1", "Job")
    pod = job["spec"]["template"]["spec"]
    assert pod["restartPolicy"] == "Never"
    (container,) = pod["containers"]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == 1
    assert {mount["name"] for mount in container["volumeMounts"]} == {
        volume["name"] for volume in pod["volumes"]
    }


def test_the_script_for_slurm_is_bash_and_its_worker_gets_the_signal() -> None:
    script = FILES / "slurm-worker.sh"
    subprocess.run(["bash", "-n", str(script)], check=True, timeout=60)
    text = script.read_text(encoding="utf-8")
    first, *rest = text.splitlines()
    assert first == "#!/usr/bin/env bash"
    last = max(place for place, line in enumerate(rest) if line.startswith("#SBATCH"))
    # SLURM reads no directive behind the first command.
    assert all(line.startswith("#") for line in rest[:last])
    assert "#SBATCH --signal=B:TERM@" in text


def test_all_of_them_start_the_same_worker_and_its_options_exist() -> None:
    commands = worker_commands()
    for command in (*commands.values(), PLATFORM):
        check_against_help(command[command.index("osmosis platform") :])
    common = {
        name: {key: found[key] for key in ("--url", "--pool", "--gpus")}
        for name, found in ((name, options(command)) for name, command in commands.items())
    }
    assert len({tuple(found.items()) for found in common.values()}) == 1
    assert all("--token-file" in options(command) for command in commands.values())
