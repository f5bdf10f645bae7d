"""Where modules are found that had another path in 0.3.11: those paths are imported with a warning until 0.5.

An old path gives the module itself, under both names in ``sys.modules``: what is patched or pickled under the
old one is the thing in use. ``osmosis_ai`` asks :func:`find_moved` for names that nothing else finds, so that
nobody pays for this who uses no old path. From the first use on it is asked first: a moved package is known
under two names, and only this knows that a module found below the old one is there already.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from importlib import import_module
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

# old path -> new path, below `osmosis_ai`; scripts/make_moved_modules.py writes it.
MOVED = {
    # <table>
    "api.rejections": "api.http_errors",
    "api.transfer.store": "api.transfer.client",
    "cli.check": "cli.workspaces.check",
    "cli.dataset": "cli.datasets",
    "cli.demo_training": "cli.demo",
    "cli.doctor": "cli.workspaces.doctor",
    "cli.eval": "cli.eval_runs",
    "cli.eval.durations": "cli.options",
    "cli.eval.following": "cli.eval_runs.view",
    "cli.eval.graceful_stop": "cli.graceful_stop",
    "cli.eval.live_numbers": "cli.runs.following",
    "cli.eval.platform_tables": "cli.eval_runs.view",
    "cli.eval.rubric": "cli.rubric.eval_rubric",
    "cli.eval.rubric_live": "cli.rubric.live",
    "cli.eval.rubric_tables": "cli.rubric.tables",
    "cli.eval.trust_tables": "cli.rubric.trust_tables",
    "cli.eval_rubric": "cli.rubric.classic",
    "cli.hidden_prompt": "cli.typed_line",
    "cli.listing": "cli.connection",
    "cli.model": "cli.models",
    "cli.output.sparkline": "cli.output.chart",
    "cli.platform.extra": "cli.platform.local_platform",
    "cli.platform.opened": "cli.platform.local_platform",
    "cli.preview": "cli.rubric.preview",
    "cli.rollout": "cli.rollouts",
    "cli.root_help": "cli.registry",
    "cli.run_details": "cli.options",
    "cli.run_following": "cli.runs.following",
    "cli.run_logs": "cli.runs.view",
    "cli.run_stop": "cli.runs.view",
    "cli.run_submit": "cli.runs.submit",
    "cli.secret": "cli.secrets",
    "cli.train": "cli.training_runs",
    "cli.train.following": "cli.training_runs.view",
    "cli.workspace": "cli.workspaces",
    "controller": "driving",
    "controller.finished": "driving.callback_registry",
    "controller.listener": "driving.callback_server",
    "controller.store": "driving.callback_registry",
    "evaluation.attempts": "driving.attempts",
    "evaluation.classify": "driving.classify",
    "evaluation.concurrency": "driving.dispatcher",
    "evaluation.engine": "driving.dispatcher",
    "evaluation.machine": "driving.machine",
    "evaluation.overload": "driving.overload",
    "evaluation.pace": "driving.machine",
    "evaluation.projection": "evaluation.trajectory_export",
    "evaluation.rollout_host": "driving.restarting_server",
    "evaluation.seeds": "driving.attempts",
    "evaluation.unwinding": "driving.restarting_server",
    "inference.template_habits": "inference.tool_format_detection",
    "platform.datasets.announcement": "platform.datasets.upload_request",
    "platform.datasets.catalog": "platform.datasets.store",
    "platform.datasets.copies": "platform.datasets.lookup",
    "platform.datasets.pending": "platform.datasets.pending_uploads",
    "platform.db.models": "platform.db.tables",
    "platform.departures": "platform.offboarding",
    "platform.http.auth": "platform.http.tokens",
    "platform.http.connections": "platform.http.connection_limits",
    "platform.http.device": "platform.http.tokens",
    "platform.http.health": "platform.app",
    "platform.http.limits": "platform.http.body_limits",
    "platform.http.pages": "platform.http.sign_in_pages",
    "platform.http.scope": "platform.http.authentication",
    "platform.http.visitors": "platform.http.browser_sessions",
    "platform.lora_models": "platform.models",
    "platform.meant_names": "platform.name_lookup",
    "platform.runs.counts": "platform.runs.read.run_counts",
    "platform.runs.derived_files": "platform.runs.read.derived_files",
    "platform.runs.downloads": "platform.runs.read.downloads",
    "platform.runs.evaluation_work": "platform.runs.work.eval_work",
    "platform.runs.executor": "platform.runs.execute.executor",
    "platform.runs.headlines": "platform.runs.eval_results",
    "platform.runs.materials": "platform.runs.work.inputs",
    "platform.runs.names": "platform.runs.submit.run_names",
    "platform.runs.parts": "platform.services",
    "platform.runs.policies": "platform.runs.submit.model_path",
    "platform.runs.process_environment": "platform.runs.execute.worker_process",
    "platform.runs.publisher": "platform.runs.work.publisher",
    "platform.runs.reading": "platform.runs.read.run_store",
    "platform.runs.rejection": "platform.runs.submit.errors",
    "platform.runs.request": "platform.runs.submit.eval_request",
    "platform.runs.request_body": "platform.runs.submit.run_request",
    "platform.runs.results": "platform.runs.eval_results",
    "platform.runs.resuming": "platform.runs.submit.resuming",
    "platform.runs.sample_files": "platform.runs.work.sample_files",
    "platform.runs.selection": "platform.runs.submit.row_selection",
    "platform.runs.sentence": "platform.runs.work.run_work",
    "platform.runs.status": "platform.runs.lifecycle",
    "platform.runs.training_curves": "platform.runs.read.training_curves",
    "platform.runs.training_findings": "platform.runs.work.training_publisher",
    "platform.runs.training_request": "platform.runs.submit.training_request",
    "platform.runs.training_store": "platform.runs.work.training_publisher",
    "platform.runs.training_work": "platform.runs.work.training_work",
    "platform.runs.upsert": "platform.db.tables",
    "platform.runs.worker": "platform.runs.work.worker",
    "platform.runs.worker_status": "platform.runs.execute.worker_process",
    "platform.served": "platform.model_serving",
    "platform.served_adapters": "platform.model_servers",
    "rollout.server.courier": "rollout.server.callback_delivery",
    "rubric.figure": "rubric.estimate",
    "rubric.findings": "rubric.trust",
    "rubric.sentences": "rubric.messages",
    "services.auth.tokens": "services.auth.logout",
    "services.backend_preflight": "services.rollouts.preflight",
    "services.check_annotations": "services.workspaces.check_annotations",
    "services.dataset_transfer": "services.datasets.transfer",
    "services.doctor": "services.workspaces.doctor",
    "services.entrypoint_probe": "services.rollouts.entrypoint_probe",
    "services.env_consents": "services.env.consents",
    "services.env_files": "services.env.files",
    "services.eval_download": "services.runs.download",
    "services.eval_gate": "services.eval_runs.gate",
    "services.eval_rubric": "services.rubric.eval_rubric",
    "services.eval_run": "services.eval_runs.run",
    "services.eval_watch": "services.eval_runs.watch",
    "services.metrics_export": "services.training_runs.info",
    "services.model_download": "services.models.download",
    "services.pinned_commit": "services.runs.pinned_commit",
    "services.platform_datasets": "services.datasets.cached",
    "services.platform_runs": "services.runs.lifecycle",
    "services.preview": "services.rubric.preview",
    "services.rubric_inputs": "services.rubric.inputs",
    "services.rubric_results": "services.rubric.results",
    "services.run_files": "services.runs.files",
    "services.run_secrets": "services.runs.secrets",
    "services.run_submit": "services.runs.submit",
    "services.run_watching": "services.runs.lifecycle",
    "services.submit_findings": "services.runs.submit_findings",
    "services.train_compare": "services.training_runs.compare",
    "services.train_estimate": "services.training_runs.estimate",
    "services.train_runs": "services.training_runs.info",
    "services.train_watch": "services.training_runs.watch",
    "services.workspace_check": "services.workspaces.check",
    "services.workspace_directories": "services.workspaces.directories",
    "training.advantages": "training.objective.advantages",
    "training.agreement": "training.objective.logprob_mismatch",
    "training.batches": "training.objective.batches",
    "training.checkpoints": "training.learner.checkpoints",
    "training.config_check": "config.release_checks",
    "training.cut_off": "training.runs.truncation",
    "training.data_order": "training.runs.data_order",
    "training.distributed": "training.learner.distributed",
    "training.estimate": "training.runs.memory_estimate",
    "training.extra": "training",
    "training.followers": "training.learner.ranks",
    "training.guarded": "supervision.__main__",
    "training.hooks": "training.runs.hooks",
    "training.learner_metrics": "training.learner.step_metrics",
    "training.logged_hooks": "training.runs.hooks",
    "training.logprobs": "training.objective.logprobs",
    "training.loop": "training.runs.loop",
    "training.loop_state": "training.runs.loop_state",
    "training.loopback": "supervision.service",
    "training.losses": "training.objective.losses",
    "training.metrics": "training.runs.metrics",
    "training.openings": "training.engines.prompt_prefix_cache",
    "training.passes": "training.learner.forward_backward",
    "training.policy_bridge": "training.engines.policy_bridge",
    "training.policy_engine": "training.engines.policy_engine",
    "training.policy_model": "training.learner.policy_model",
    "training.recording": "training.engines.recording",
    "training.refusals": "training.learner.step_errors",
    "training.rollout_batch": "training.runs.rollout_batch",
    "training.run_directory": "training.runs.run_directory",
    "training.sampler": "training.runs.sampler",
    "training.sampling_probe": "training.engines.sampling_probe",
    "training.sequences": "training.objective.sequences",
    "training.settings": "config.training",
    "training.spec": "training.runs.spec",
    "training.trainer": "training.runs.trainer",
    "training.validation": "training.runs.validation",
    "training.validation_headline": "training.runs.validation_headline",
    "training.vllm_backend": "training.engines.vllm_engine",
    "training.vllm_server": "training.engines.vllm_server",
    "workspace.config": "workspace.config_files",
    "workspace.config_checks": "config.checks",
    "workspace.config_issues": "config.issues",
    "workspace.config_lines": "config.lines",
    "workspace.config_sections": "config.sections",
    "workspace.spelling": "config.issues",
    # </table>
}


# Packages that have the path of a former module: package -> the module that has its names now, and those names.
NAMES_OF_FORMER_MODULES: dict[str, tuple[str, frozenset[str]]] = {
    "services.datasets": (
        "services.datasets.catalog",
        frozenset(
            {"IN_PROGRESS", "READY", "validate_file", "list_datasets", "preview_dataset", "dataset_logs"}
            | {"dataset_item"}
        ),
    ),
    "services.eval_runs": (
        "services.eval_runs.info",
        frozenset(
            {"RunProgress", "list_runs", "describe_run", "run_item", "run_summary", "run_metrics", "finite"}
            | {"plain", "rows_drawn", "run_headline", "run_progress"}
        ),
    ),
    "services.models": (
        "services.models.catalog",
        frozenset(
            {"INFERENCE_PATH", "HOSTED_INFERENCE_URL", "Deployments", "list_base_models", "list_lora_models"}
            | {"get_lora_model", "deploy", "undeploy", "inference_url", "ask_by_name", "base_item"}
            | {"can_be_deployed", "lora_detail", "lora_item"}
        ),
    ),
    "services.rollouts": (
        "services.rollouts.catalog",
        frozenset(
            {"InitializedRollout", "initialize_rollout", "RolloutListing", "list_rollouts", "rollout_item"}
        ),
    ),
    "services.workspaces": (
        "services.workspaces.memberships",
        frozenset(
            {"CurrentWorkspace", "list_workspaces", "current_workspace", "find_workspace_directory"}
            | {"Membership"}
        ),
    ),
    "training.engines": (
        "training.runs.engine_factory",
        frozenset(
            {"ENGINE_BATCH", "SERVER_KEY_ENV", "chat_format_of", "open_policy_engine", "computes_in_float32"}
        ),
    ),
    "training.learner": ("training.learner.learner", frozenset({"Learner", "warmed_up"})),
}


def names_of_former_module(package: str) -> Callable[[str], Any]:
    """Return the ``__getattr__`` of a package that took a module's path: it gives the module's names, with a warning.

    Args:
        package: its whole dotted name, a key of :data:`NAMES_OF_FORMER_MODULES` behind `osmosis_ai.`.
    """
    root, _, below = package.partition(".")
    home, names = NAMES_OF_FORMER_MODULES[below]

    def get_name(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        _warn(f"{package}.{name}", f"{root}.{home}.{name}", stacklevel=3)
        return getattr(import_module(f"{root}.{home}"), name)

    return get_name


class _MovedModule(Loader):
    def __init__(self, new: str) -> None:
        self._new = new

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        sys.modules[module.__name__] = import_module(self._new)


def find_moved(finder: Any, old: str) -> ModuleSpec | None:
    """Return how to import ``old`` when it is a path that has moved, else None.

    Args:
        finder: what import asks for it; it is asked before all others once an old path is used.
        old: the whole dotted name.

    Warns:
        DeprecationWarning: in the name of who imports the old path.
    """
    new = new_path(old)
    if new is None:
        return None
    if sys.meta_path[0] is not finder:
        # It keeps its last place, too: other threads may be asking one finder after the other.
        sys.meta_path.insert(0, finder)
    _warn(old, new, stacklevel=4)
    return ModuleSpec(old, _MovedModule(new))


def new_path(old: str) -> str | None:
    """Return the path that ``old``, or the package it was in, has today; None when it has not moved."""
    package, _, below = old.partition(".")
    if below in MOVED:
        return f"{package}.{MOVED[below]}"
    parent, _, leaf = old.rpartition(".")
    home = new_path(parent) if parent else None
    return home and f"{home}.{leaf}"


def _warn(old: str, new: str, *, stacklevel: int) -> None:
    warnings.warn(
        f"{old} is {new} now; the old path can be imported until osmosis-ai 0.5",
        DeprecationWarning,
        stacklevel=stacklevel,
    )
