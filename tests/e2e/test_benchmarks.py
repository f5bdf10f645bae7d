"""Every benchmark runs at its smallest size."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.warm_osmosis import warm_python

pytestmark = pytest.mark.e2e

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
SMALLEST = {
    "datasets": "--megabytes 1 --repeat 1 --format jsonl",
    "engine": "--latency-ms 1 --in-flight 2 --clients http --rows 4 --runs 1 --memory-rows 4",
    "first_row": "--turns 1 --where local worker ray",
    "platform_load": "--runs 50 --samples 50 --clients 10 --pause-s 0.05 --seconds 0.5 --turns 1 --executing 1",
    "resume": "--few 2 --many 8 --runs 1",
    "rubric": "--calls 8 --latency-ms 1 --in-flight 4 --paths direct",
    "sandbox": "--rows 4 --runs 1 --starts 5",
    "startup": "--runs 1",
    "stragglers": "--max-staleness 0 --steps 2 --attempts 8 --sleep 0.1",
    "viewer": "--samples 40 --runs 3 --repeat 1",
    "workers": "--workers 2 --seconds 2 --database sqlite",
    "training": "--sessions 1 --rounds 1 --steps 1 --rollouts 8",
}
TRAINS = ("stragglers", "training")
STARTS_COLD = ("first_row",)
"""These count their descendants, start Python processes, or look for `ray` next to Python; a warm fork differs there."""


def output_of(*command: str, cwd: Path | None = None) -> str:
    done = subprocess.run(
        command, cwd=cwd, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=1200
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


def test_every_benchmark_has_a_smallest_size() -> None:
    assert {path.stem for path in BENCHMARKS.glob("*.py")} - {"harness", "gpu"} == set(SMALLEST)


def test_benchmarks_can_be_imported() -> None:
    source = "import importlib, sys; sys.path.insert(0, sys.argv[1]); [importlib.import_module(name) for name in sys.argv[2:]]"
    output_of(warm_python(torch=True), "-c", source, str(BENCHMARKS), *SMALLEST)


@pytest.mark.nightly
@pytest.mark.parametrize("name", SMALLEST)
def test_benchmark_prints_figures(name: str, tmp_path: Path) -> None:
    python = sys.executable if name in STARTS_COLD else warm_python(torch=name in TRAINS)
    out = output_of(python, str(BENCHMARKS / f"{name}.py"), *SMALLEST[name].split(), cwd=tmp_path)
    assert any(character.isdigit() for character in out)
