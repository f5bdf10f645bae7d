"""Writes the table of osmosis_ai.moved_modules from Git's history: which modules of the last release lie elsewhere.

python scripts/make_moved_modules.py           write the table
python scripts/make_moved_modules.py --check   fail when the table names what is not there

The base is the commit of the last release with the old layout. Moves are followed commit by commit; what was
folded into another module is no rename to Git and stands in FOLDED.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

BASE = "f923906"
ROOT = Path(__file__).parents[1]
SOURCE = "src/osmosis_ai/"
TABLE = ROOT / SOURCE / "moved_modules.py"
_BETWEEN = re.compile(r"(?<=# <table>\n).*?(?=    # </table>)", re.DOTALL)

# Modules whose content went into others: old path -> where the names of it are today.
FOLDED: dict[str, str] = {
    "training.extra": "training",
    "training.loopback": "supervision.service",
    "platform.http.health": "platform.app",
    "platform.runs.parts": "platform.services",
    "training.logged_hooks": "training.runs.hooks",
    "rubric.findings": "rubric.trust",
    "services.metrics_export": "services.training_runs.info",
    "workspace.spelling": "config.issues",
    "cli.root_help": "cli.registry",
    "cli.listing": "cli.connection",
    "cli.output.sparkline": "cli.output.chart",
    "cli.platform.extra": "cli.platform.local_platform",
    "services.auth.tokens": "services.auth.logout",
    "cli.demo_training": "cli.demo",
    "cli.eval.durations": "cli.options",
    "cli.eval.following": "cli.eval_runs.view",
    "cli.eval.live_numbers": "cli.runs.following",
    "cli.eval.platform_tables": "cli.eval_runs.view",
    "cli.run_details": "cli.options",
    "cli.run_logs": "cli.runs.view",
    "cli.run_stop": "cli.runs.view",
    "cli.train.following": "cli.training_runs.view",
    "controller.finished": "driving.callback_registry",
    "evaluation.attempts": "driving.attempts",
    "evaluation.concurrency": "driving.dispatcher",
    "evaluation.pace": "driving.machine",
    "evaluation.seeds": "driving.attempts",
    "evaluation.unwinding": "driving.restarting_server",
    "platform.http.device": "platform.http.tokens",
    "platform.http.pages": "platform.http.sign_in_pages",
    "platform.runs.training_store": "platform.runs.work.training_publisher",
    "platform.runs.headlines": "platform.runs.eval_results",
    "platform.runs.sentence": "platform.runs.work.run_work",
    "platform.runs.upsert": "platform.db.tables",
    "platform.runs.worker_status": "platform.runs.execute.worker_process",
    "services.run_watching": "services.runs.lifecycle",
}


def main() -> int:
    """Write or check the table; return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="write nothing; fail when a path leads nowhere")
    if parser.parse_args().check:
        from osmosis_ai.moved_modules import MOVED

        astray = sorted(f"{old} -> {new}" for old, new in MOVED.items() if not exists(new) or exists(old))
        print(*astray, sep="\n")
        return 1 if astray else 0
    moved, lost = moves()
    lines = "".join(f'    "{old}": "{new}",\n' for old, new in sorted(moved.items()))
    TABLE.write_text(_BETWEEN.sub(lambda _: lines, TABLE.read_text()))
    print(f"{len(moved)} paths; without a successor:", *lost, sep="\n  ", file=sys.stderr)
    return 0


def moves() -> tuple[dict[str, str], list[str]]:
    """Return old path -> new path of every module that has moved, and the modules that are gone."""
    paths = {path: path for path in git("ls-tree", "-r", "--name-only", BASE, "--", SOURCE).splitlines()}
    modules = {path: path for path in paths if path.endswith(".py") and "/versions/" not in path}
    for line in git(
        "log",
        "--reverse",
        "--format=",
        "-M40",
        "--diff-filter=R",
        "--name-status",
        f"{BASE}..HEAD",
        "--",
        SOURCE,
    ).splitlines():
        _, old, new = line.split("\t")
        for module, now in modules.items():
            if now == old and not old.endswith("__init__.py"):
                modules[module] = new
    found = {dotted(old): dotted(new) for old, new in modules.items() if not old.endswith("__init__.py")}
    found = {old: FOLDED.get(old) or FOLDED.get(new) or new for old, new in found.items()}
    packages = {
        dotted(old): home_of(dotted(old), found)
        for old in modules
        if old.endswith("__init__.py") and not exists(dotted(old))
    }
    moved = {old: new for old, new in (packages | found).items() if old != new and not exists(old)}
    lost = sorted(old for old, new in (packages | found).items() if not exists(old) and not exists(new))
    return {old: new for old, new in moved.items() if exists(new) and not implied(old, new, moved)}, lost


def home_of(package: str, found: dict[str, str]) -> str:
    """Return the package to which most modules of a package went that is gone."""
    homes = Counter(
        new.rpartition(".")[0] for old, new in found.items() if old.startswith(f"{package}.") and exists(new)
    )
    return FOLDED.get(package) or (homes.most_common(1)[0][0] if homes else package)


def implied(old: str, new: str, moved: dict[str, str]) -> bool:
    """Tell whether the move of its package says where ``old`` is."""
    parent, _, leaf = old.rpartition(".")
    return f"{moved.get(parent)}.{leaf}" == new


def exists(path: str) -> bool:
    """Tell whether a module or package of this path is in the tree."""
    place = ROOT / SOURCE / path.replace(".", "/")
    return place.with_suffix(".py").is_file() or (place / "__init__.py").is_file()


def dotted(path: str) -> str:
    """Return the path of a file as the module's name below ``osmosis_ai``."""
    return path.removeprefix(SOURCE).removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def git(*arguments: str) -> str:
    """Return what Git prints."""
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout


if __name__ == "__main__":
    sys.exit(main())
