"""Every name and path that code written for the hosted SDK imports."""

from __future__ import annotations

import importlib
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

pytestmark = pytest.mark.imports_much

PATHS = {
    "osmosis_ai.rollout.agent_workflow": "AgentWorkflow",
    "osmosis_ai.rollout.grader": "Grader",
    "osmosis_ai.rollout.context": "AgentWorkflowContext GraderContext RolloutContext SampleSource get_rollout_context "
    "rollout_contextvar CHAT_COMPLETIONS_URL_ENV API_KEY_ENV ROLLOUT_ID_ENV",
    "osmosis_ai.rollout.types": "AgentWorkflowConfig AgentWorkflowOutput BaseConfig CancelRolloutsRequest "
    "CancelRolloutsResponse ConcurrencyConfig ExecutionRequest ExecutionResult GraderCompleteRequest GraderConfig "
    "GraderInitRequest GraderInitResponse GraderStatus MessageDict Messages RolloutCompleteRequest "
    "RolloutErrorCategory RolloutInitRequest RolloutInitResponse RolloutSample RolloutStatus RolloutStatusResponse",
    "osmosis_ai.rollout.types.config": "AgentWorkflowConfig BaseConfig ConcurrencyConfig GraderConfig",
    "osmosis_ai.rollout.types.output": "AgentWorkflowOutput coerce_output",
    "osmosis_ai.rollout.types.protocol": "RolloutInitRequest RolloutCompleteRequest GraderCompleteRequest",
    "osmosis_ai.rollout.types.sample": "RolloutSample MessageDict",
    "osmosis_ai.rollout.backend": "ExecutionBackend LocalBackend ResultCallback",
    "osmosis_ai.rollout.backend.local": "LocalBackend",
    "osmosis_ai.rollout.backend.local.backend": "LocalBackend",
    "osmosis_ai.rollout.server": "create_rollout_server ControllerAuth",
    "osmosis_ai.rollout.utils.imports": "resolve_object",
    "osmosis_ai.rollout.utils.messages": "map_initial_messages_to_content_blocks",
    "osmosis_ai.rollout.integrations.agents.openai_agents": "OsmosisAgent OsmosisLitellmModel "
    "OsmosisMemorySession OsmosisRolloutModel SessionSampleSource",
    "osmosis_ai.rollout.integrations.agents.strands": "OsmosisRolloutModel OsmosisStrandsAgent "
    "StrandsAgentSampleSource",
    "osmosis_ai.rollout.controller": "CallbackListener CallbackStore LiteLLMBridge TerminalCallbackResult",
    "osmosis_ai.rollout.controller.store": "CallbackStore DuplicateRegistrationError TerminalCallbackResult "
    "UnknownRolloutIdError duplicate_callback_payload",
    "osmosis_ai.rollout.controller.listener": "CallbackListener create_callback_app",
    "osmosis_ai.rollout.controller.llm_bridge": "LiteLLMBridge",
    "osmosis_ai.rollout.driver": "RolloutDriver RolloutOutcome RolloutRunRequest",
    "osmosis_ai.rollout.http_driver": "HttpRolloutDriver RolloutProtocolError",
    "osmosis_ai.rollout.trajectory": "TrajectoryReport convert_sample_to_trajectory report_from_response "
    "save_trajectory",
    "osmosis_ai.eval.rubric": "MissingAPIKeyError ModelNotFoundError ProviderRequestError RubricResult evaluate_rubric",
    "osmosis_ai.eval.rubric.engine": "DEFAULT_API_KEY_ENV DEFAULT_REQUEST_TIMEOUT_SECONDS evaluate_rubric",
    "osmosis_ai.eval.rubric.types": "MissingAPIKeyError ModelNotFoundError ProviderRequestError RubricResult",
}


def run_python(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize(
    "name", ["ControllerAuth", "create_rollout_server", "OsmosisRolloutModel", "nonsense"]
)
def test_the_package_does_not_offer_what_needs_an_extra(name: str) -> None:
    with pytest.raises(AttributeError, match=name):
        getattr(importlib.import_module("osmosis_ai.rollout"), name)


@pytest.mark.parametrize("path", PATHS)
def test_every_documented_path_has_its_names(path: str) -> None:
    module = importlib.import_module(path)

    assert [name for name in PATHS[path].split() if not hasattr(module, name)] == []


def test_importing_the_package_and_its_names_loads_no_web_framework_and_no_model_client() -> None:
    loaded = run_python(
        """
        import sys
        import osmosis_ai.rollout as rollout
        assert "pydantic" not in sys.modules, "the bare import must load nothing"
        for name in rollout.__all__:
            getattr(rollout, name)
        print([name for name in ("agents", "aiohttp", "fastapi", "harbor", "litellm", "strands", "uvicorn")
               if name in sys.modules])
        """
    )

    assert loaded == "[]"


@pytest.mark.parametrize(
    ("extra", "module", "path"),
    [
        ("server", "fastapi", "server import create_rollout_server"),
        ("openai-agents", "agents", "integrations.agents.openai_agents import OsmosisAgent"),
        ("strands", "strands", "integrations.agents.strands import OsmosisStrandsAgent"),
    ],
)
def test_a_missing_extra_is_named_with_the_command_that_installs_it(
    extra: str, module: str, path: str
) -> None:
    told = run_python(
        f"""
        import sys
        sys.modules["{module}"] = None
        try:
            from osmosis_ai.rollout.{path}
        except ModuleNotFoundError as error:
            print(error.name, error)
        print("litellm" in sys.modules)
        """
    )

    assert told.startswith(module) and f"`{extra}` extra" in told
    assert "pip install" in told and f"[{extra}]" in told
    assert told.endswith("False"), "seconds were spent before it was said"


@pytest.mark.parametrize(
    ("module", "path"),
    [
        ("agents", "integrations.agents.openai_agents import OsmosisAgent"),
        ("strands", "integrations.agents.strands import OsmosisStrandsAgent"),
    ],
)
def test_a_file_of_the_users_that_hides_a_framework_is_named(tmp_path: Path, module: str, path: str) -> None:
    (tmp_path / f"{module}.py").write_text("mine = True\n")
    told = run_python(
        f"""
        import sys
        sys.path.insert(0, {str(tmp_path)!r})
        try:
            from osmosis_ai.rollout.{path}
        except ImportError as error:
            print(type(error).__name__, error)
        """
    )

    assert told.startswith("ImportError") and "a file of yours needs another name" in told
    assert str(tmp_path / f"{module}.py") in told


def test_an_import_error_that_is_not_about_the_extra_passes_through() -> None:
    told = run_python(
        """
        import sys
        sys.modules["orjson"] = None
        try:
            from osmosis_ai.rollout.server import create_rollout_server
        except ModuleNotFoundError as error:
            print(error)
        """
    )

    assert "orjson" in told and "extra" not in told
