"""Modules that have moved are imported under their old path too, with a warning; it costs nobody else anything."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from osmosis_ai.moved_modules import MOVED, NAMES_OF_FORMER_MODULES, new_path

pytestmark = pytest.mark.integration

SOURCE = Path(__file__).parents[1] / "src/osmosis_ai"


def run(code: str) -> str:
    """Run code in an interpreter of its own, which shows every warning as one line; return what it prints."""
    show = "import sys, warnings; warnings.showwarning = lambda m, c, file, *_: print(c.__name__, file, m)\n"
    done = subprocess.run(
        [sys.executable, "-W", "always::DeprecationWarning:__main__", "-c", show + code],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_path_of_the_table_is_gone_and_leads_to_a_module() -> None:
    def exists(path: str) -> bool:
        place = SOURCE / path.replace(".", "/")
        return place.with_suffix(".py").is_file() or (place / "__init__.py").is_file()

    assert not [old for old, new in MOVED.items() if exists(old) or not exists(new)]


def test_an_old_path_gives_the_same_module_and_warns_whoever_imports_it() -> None:
    out = run(
        "import osmosis_ai.api.rejections as old, osmosis_ai.api.http_errors as new\n"
        "from osmosis_ai.api import rejections\n"
        "print(old is new is rejections, new.__spec__.name, new.__name__)"
    )
    assert out.splitlines() == [
        "DeprecationWarning <string> osmosis_ai.api.rejections is osmosis_ai.api.http_errors now; "
        "the old path can be imported until osmosis-ai 0.5",
        "True osmosis_ai.api.http_errors osmosis_ai.api.http_errors",
    ]


def test_a_moved_package_and_what_is_below_it_are_the_same_modules_too() -> None:
    out = run(
        "import osmosis_ai.cli.eval.stop as old, osmosis_ai.cli.eval_runs.stop as new\n"
        "import osmosis_ai.cli.eval as package, osmosis_ai.cli.eval_runs as home\n"
        "print(sys.modules['osmosis_ai.cli.eval.stop'] is sys.modules['osmosis_ai.cli.eval_runs.stop'])\n"
        "print(package is home)"
    )
    assert out.splitlines()[-2:] == ["True", "True"]
    assert out.count("DeprecationWarning") == 2


def test_what_is_patched_or_pickled_under_an_old_path_is_the_thing_in_use() -> None:
    out = run(
        "import pickle, unittest.mock\n"
        "with unittest.mock.patch('osmosis_ai.api.rejections.PlatformError', 7):\n"
        "    from osmosis_ai.api.http_errors import PlatformError as patched\n"
        "from osmosis_ai.api.http_errors import PlatformError\n"
        "print(patched, pickle.loads(b'cosmosis_ai.api.rejections\\nPlatformError\\n.') is PlatformError)"
    )
    assert out.endswith("7 True\n")


def test_the_names_of_a_module_whose_path_is_a_package_now_are_found_there() -> None:
    out = run(
        "from osmosis_ai.services.rollouts import list_rollouts as old\n"
        "from osmosis_ai.services.rollouts.catalog import list_rollouts as new\n"
        "print(old is new)"
    )
    *warned, same = out.splitlines()
    assert same == "True"
    assert set(warned) == {
        "DeprecationWarning <string> osmosis_ai.services.rollouts.list_rollouts is "
        "osmosis_ai.services.rollouts.catalog.list_rollouts now; the old path can be imported until osmosis-ai 0.5"
    }


@pytest.mark.parametrize(
    ("package", "name"),
    [
        ("services.datasets", "dataset_item"),
        ("services.eval_runs", "run_headline"),
        ("services.models", "lora_item"),
        ("services.rollouts", "rollout_item"),
        ("services.workspaces", "Membership"),
        ("training.engines", "computes_in_float32"),
    ],
)
@pytest.mark.imports_much
def test_what_helped_a_former_modules_neighbours_is_found_there_too(package: str, name: str) -> None:
    if package.startswith("training."):
        pytest.importorskip("torch")
    with pytest.deprecated_call():
        assert getattr(import_module(f"osmosis_ai.{package}"), name)


@pytest.mark.imports_much
def test_every_name_of_a_former_module_is_where_the_table_says() -> None:
    pytest.importorskip("torch")
    for package, (home, names) in NAMES_OF_FORMER_MODULES.items():
        module = import_module(f"osmosis_ai.{home}")
        assert not [name for name in names if not hasattr(module, name)], home
        for name in names:
            with pytest.deprecated_call():
                assert getattr(import_module(f"osmosis_ai.{package}"), name) is getattr(module, name)


def test_a_path_that_never_was_is_not_found() -> None:
    assert new_path("osmosis_ai.evaluation.nothing") is None
    out = run(
        "try:\n    import osmosis_ai.nothing\nexcept ModuleNotFoundError as error:\n    print(error.name)"
    )
    assert out == "osmosis_ai.nothing\n"


def test_another_thread_finds_old_paths_while_one_is_looked_up() -> None:
    out = run(
        "class Finders(list):\n"
        "    def remove(self, finder):\n"
        "        super().remove(finder)\n"
        "        import osmosis_ai.workspace.spelling\n"
        "sys.meta_path = Finders(sys.meta_path)\n"
        "import osmosis_ai.api.rejections, osmosis_ai.workspace.spelling\n"
        "print(osmosis_ai.workspace.spelling.__name__)"
    )
    assert out.endswith("osmosis_ai.config.issues\n")


def test_the_end_of_an_interpreter_whose_finders_were_replaced_is_quiet() -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys; before = sys.meta_path[:]; import osmosis_ai; sys.meta_path[:] = before",
        ],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stderr == ""
