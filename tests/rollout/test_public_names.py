"""Every name and path that code written for either line of the hosted SDK imports."""

from __future__ import annotations

import importlib
import subprocess
import sys
import textwrap
from operator import attrgetter
from pathlib import Path

import pytest

import osmosis_ai
from osmosis_ai import rollout


def run_python(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.imports_much
@pytest.mark.parametrize(
    "name", ["ControllerAuth", "create_rollout_server", "OsmosisRolloutModel", "nonsense"]
)
def test_names_of_extras_are_not_in_the_package(name: str) -> None:
    with pytest.raises(AttributeError, match=name):
        getattr(importlib.import_module("osmosis_ai.rollout"), name)


def failed_import(path: str, before: str) -> str:
    """Import from a public path in a process that has run ``before``; return the error's type, name and text."""
    return run_python(
        f"""
        import sys
        {before}
        try:
            from osmosis_ai.rollout.{path}
        except ImportError as error:
            print(type(error).__name__, error.name, error)
        assert "litellm" not in sys.modules, "seconds were spent before it was said"
        """
    )


SERVER = "server import create_rollout_server"
FRAMEWORKS = {
    "agents": "integrations.agents.openai_agents import OsmosisAgent",
    "strands": "integrations.agents.strands import OsmosisStrandsAgent",
}


@pytest.mark.imports_much
@pytest.mark.parametrize(
    ("extra", "module", "path"),
    [
        ("server", "fastapi", SERVER),
        ("openai-agents", "agents", FRAMEWORKS["agents"]),
        ("strands", "strands", FRAMEWORKS["strands"]),
    ],
)
def test_a_missing_extra(extra: str, module: str, path: str) -> None:
    printed = failed_import(path, f"sys.modules['{module}'] = None")

    assert printed.startswith(f"ModuleNotFoundError {module}") and f"`{extra}` extra" in printed
    assert "pip install" in printed and f"[{extra}]" in printed


@pytest.mark.imports_much
@pytest.mark.parametrize("module", FRAMEWORKS)
def test_a_file_that_hides_a_framework(tmp_path: Path, module: str) -> None:
    (tmp_path / f"{module}.py").write_text("mine = True\n")
    printed = failed_import(FRAMEWORKS[module], f"sys.path.insert(0, {str(tmp_path)!r})")

    assert printed.startswith("ImportError") and "rename that file" in printed
    assert str(tmp_path / f"{module}.py") in printed


@pytest.mark.imports_much
def test_other_import_errors_pass_through() -> None:
    printed = failed_import(SERVER, "sys.modules['orjson'] = None")

    assert "orjson" in printed and "extra" not in printed


AGENT_LOOP_NAMES = """
    RolloutAgentLoop RolloutContext RolloutResult OsmosisLLMClient CompletionsResult LLMClientProtocol
    validate_agent_loop ValidationResult ValidationError AgentLoopValidationError AgentLoopRegistry
    register_agent_loop unregister_agent_loop get_agent_loop list_agent_loops RolloutRequest
    RolloutResponse InitResponse RolloutStatus RolloutMetrics CompletionsRequest CompletionsResponse
    CompletionsChoice CompletionUsage OpenAIFunctionToolSchema OpenAIFunctionSchema
    OpenAIFunctionParametersSchema OpenAIFunctionPropertySchema OpenAIFunctionParsedSchema
    OpenAIFunctionCallSchema OpenAIFunctionToolCall ToolResponse MessageDict SamplingParamsDict
    DEFAULT_MAX_METADATA_SIZE_BYTES get_max_metadata_size_bytes set_max_metadata_size_bytes
    OsmosisRolloutError OsmosisTransportError OsmosisServerError OsmosisValidationError
    OsmosisTimeoutError AgentLoopNotFoundError ToolExecutionError ToolArgumentError create_tool_result
    create_tool_error_result serialize_tool_result parse_tool_arguments get_tool_call_info
    execute_tool_calls parse_tool_calls normalize_stop get_message_content get_message_role
    is_assistant_message is_tool_message is_user_message count_messages_by_role detect_public_ip
    PublicIPDetectionError validate_ipv4 is_valid_hostname_or_ip is_private_ip RolloutSettings
    RolloutClientSettings RolloutServerSettings get_settings configure reset_settings create_app
    serve_agent_loop validate_and_report ServeError DEFAULT_HOST DEFAULT_PORT
"""
WORKFLOW_NAMES = """
    AgentWorkflow AgentWorkflowConfig AgentWorkflowContext AgentWorkflowOutput BaseConfig
    ConcurrencyConfig ExecutionBackend ExecutionRequest ExecutionResult Grader GraderCompleteRequest
    GraderConfig GraderContext GraderInitRequest GraderInitResponse GraderStatus LocalBackend
    MessageDict RolloutCompleteRequest RolloutContext RolloutErrorCategory RolloutInitRequest
    RolloutInitResponse RolloutSample RolloutStatus SampleSource get_rollout_context
"""
OWN_NAMES = ["CommandWorkflow"]
TOP_LEVEL = """
    __version__ osmosis_reward osmosis_rubric evaluate_rubric MissingAPIKeyError ProviderRequestError
    ModelNotFoundError RolloutAgentLoop RolloutContext RolloutResult OsmosisLLMClient CompletionsResult
    register_agent_loop get_agent_loop list_agent_loops RolloutRequest RolloutResponse InitResponse
    OpenAIFunctionToolSchema RolloutMetrics OsmosisRolloutError OsmosisTransportError OsmosisServerError
    OsmosisValidationError OsmosisTimeoutError create_app
"""

# Path below osmosis_ai -> names that code for 0.3 and for 0.2 imports from it.
NAMES_OF_PATHS = {
    "rollout.agent_workflow": "AgentWorkflow",
    "rollout.grader": "Grader",
    "rollout.context": "AgentWorkflowContext GraderContext RolloutContext SampleSource get_rollout_context "
    "rollout_contextvar CHAT_COMPLETIONS_URL_ENV API_KEY_ENV ROLLOUT_ID_ENV",
    "rollout.types": "AgentWorkflowConfig AgentWorkflowOutput BaseConfig CancelRolloutsRequest "
    "CancelRolloutsResponse ConcurrencyConfig ExecutionRequest ExecutionResult GraderCompleteRequest GraderConfig "
    "GraderInitRequest GraderInitResponse GraderStatus MessageDict Messages RolloutCompleteRequest "
    "RolloutErrorCategory RolloutInitRequest RolloutInitResponse RolloutSample RolloutStatus RolloutStatusResponse",
    "rollout.types.config": "AgentWorkflowConfig BaseConfig ConcurrencyConfig GraderConfig",
    "rollout.types.output": "AgentWorkflowOutput coerce_output",
    "rollout.types.protocol": "RolloutInitRequest RolloutCompleteRequest GraderCompleteRequest",
    "rollout.types.sample": "RolloutSample MessageDict",
    "rollout.backend": "ExecutionBackend LocalBackend ResultCallback",
    "rollout.backend.local": "LocalBackend",
    "rollout.backend.local.backend": "LocalBackend",
    "rollout.utils.imports": "resolve_object",
    "rollout.utils.messages": "map_initial_messages_to_content_blocks",
    "rollout.integrations.agents.openai_agents": "OsmosisAgent OsmosisLitellmModel "
    "OsmosisMemorySession OsmosisRolloutModel SessionSampleSource",
    "rollout.integrations.agents.strands": "OsmosisRolloutModel OsmosisStrandsAgent StrandsAgentSampleSource",
    "rollout.controller": "CallbackListener CallbackStore LiteLLMBridge TerminalCallbackResult",
    "rollout.controller.store": "CallbackStore DuplicateRegistrationError TerminalCallbackResult "
    "UnknownRolloutIdError duplicate_callback_payload",
    "rollout.controller.listener": "CallbackListener create_callback_app",
    "rollout.controller.llm_bridge": "LiteLLMBridge",
    "rollout.driver": "RolloutDriver RolloutOutcome RolloutRunRequest",
    "rollout.http_driver": "HttpRolloutDriver RolloutProtocolError",
    "rollout.trajectory": "TrajectoryReport convert_sample_to_trajectory report_from_response "
    "save_trajectory",
    "eval.rubric": "MissingAPIKeyError ModelNotFoundError ProviderRequestError RubricResult evaluate_rubric",
    "eval.rubric.engine": "DEFAULT_API_KEY_ENV DEFAULT_REQUEST_TIMEOUT_SECONDS evaluate_rubric",
    "eval.rubric.types": "MissingAPIKeyError ModelNotFoundError ProviderRequestError RubricResult",
    "cli": "main",
    "consts": "package_name PACKAGE_VERSION",
    "utils": "osmosis_reward osmosis_rubric",
    "rubric_eval": "DEFAULT_API_KEY_ENV evaluate_rubric ensure_api_key_available",
    "rubric_types": "MissingAPIKeyError ModelInfo ModelNotFoundError ProviderRequestError RewardRubricRunResult",
    "rollout.client": "OsmosisLLMClient CompletionsResult httpx",
    "rollout.cli_utils": "load_agent_loop",
    "rollout.config": "RolloutSettings RolloutClientSettings RolloutServerSettings get_settings configure",
    "rollout.core": "RolloutAgentLoop RolloutRequest OsmosisServerError",
    "rollout.core.base": "RolloutAgentLoop RolloutContext RolloutResult",
    "rollout.core.llm_client": "LLMClientProtocol CompletionsResult",
    "rollout.core.schemas": "RolloutRequest RolloutStatus MessageDict DEFAULT_MAX_METADATA_SIZE_BYTES",
    "rollout.eval.common": "build_completion_params create_llm_client format_duration format_tokens load_agent "
    "load_dataset_rows LocalLLMClientProtocol validate_tools DatasetReader DatasetRow REQUIRED_COLUMNS "
    "dataset_row_to_request ExternalLLMClient LocalRolloutRunner LocalRunResult LocalBatchResult LocalExecutionError "
    "DatasetParseError DatasetValidationError ToolValidationError ProviderError",
    "rollout.eval.common.cli": "load_agent load_dataset_rows create_llm_client",
    "rollout.eval.common.dataset": "DatasetReader DatasetRow REQUIRED_COLUMNS dataset_row_to_request",
    "rollout.eval.common.errors": "LocalExecutionError DatasetParseError ToolValidationError ProviderError",
    "rollout.eval.common.llm_client": "ExternalLLMClient",
    "rollout.eval.common.runner": "LocalRolloutRunner LocalRunResult LocalBatchResult validate_tools",
    "rollout.eval.evaluation": "EvalFnError EvalFnWrapper load_eval_fn load_eval_fns EvalRunResult EvalRowResult "
    "EvalEvalSummary EvalResult EvalRunner pass_at_k format_eval_report",
    "rollout.eval.evaluation.cli": "load_agent load_dataset_rows",
    "rollout.eval.evaluation.eval_fn": "EvalFnError EvalFnWrapper load_eval_fn load_eval_fns",
    "rollout.eval.evaluation.report": "format_eval_report",
    "rollout.eval.evaluation.runner": "EvalRunner EvalResult EvalRowResult EvalRunResult pass_at_k",
    "rollout.eval.test_mode": "LocalTestRunner LocalTestRunResult LocalTestBatchResult InteractiveRunner "
    "InteractiveLLMClient InteractiveStep ExternalLLMClient ProviderError",
    "rollout.eval.test_mode.cli": "load_agent load_dataset_rows",
    "rollout.eval.test_mode.interactive": "InteractiveRunner InteractiveLLMClient InteractiveStep",
    "rollout.eval.test_mode.runner": "LocalTestRunner LocalTestRunResult LocalTestBatchResult",
    "rollout.network": "detect_public_ip PublicIPDetectionError validate_ipv4",
    "rollout.registry": "AgentLoopRegistry _REGISTRY",
    "rollout.server": "create_rollout_server ControllerAuth create_app AppState serve_agent_loop",
    "rollout.server.api_key": "generate_api_key validate_api_key",
    "rollout.server.registration": "Registration",
    "rollout.server.serve": "serve_agent_loop validate_and_report ServeError",
    "rollout.server.state": "AppState",
    "rollout.server.app": "create_app create_rollout_server AppState",
    "rollout.testing": "create_mock_trainer_app RolloutCompletionTracker patch_httpx_for_mock_trainer "
    "fake_token_ids fake_prompt_token_ids",
    "rollout.utils": "count_messages_by_role get_message_content get_message_role is_assistant_message "
    "is_tool_message is_user_message normalize_stop parse_tool_calls",
    "rollout.validator": "validate_agent_loop ValidationResult",
}


def test_names_of_the_rollout_package() -> None:
    assert [len(names.split()) for names in (AGENT_LOOP_NAMES, WORKFLOW_NAMES, TOP_LEVEL)] == [76, 27, 26]
    assert set(rollout.__all__) == {*AGENT_LOOP_NAMES.split(), *WORKFLOW_NAMES.split(), *OWN_NAMES}
    assert [name for name in rollout.__all__ if getattr(rollout, name) is None] == []
    assert set(dir(rollout)) >= set(rollout.__all__)


def test_names_of_the_top_level() -> None:
    assert set(TOP_LEVEL.split()) <= set(osmosis_ai.__all__)
    for name in TOP_LEVEL.split():
        assert getattr(osmosis_ai, name) is getattr(rollout, name, getattr(osmosis_ai, name))


def test_names_of_both_protocols() -> None:
    status = rollout.RolloutStatus
    assert (status.COMPLETED, status.ERROR, status.SUCCESS) == ("COMPLETED", "ERROR", "success")
    assert rollout.MessageDict(role="user", content="hi") == {"role": "user", "content": "hi"}
    assert rollout.RolloutContext is osmosis_ai.RolloutContext
    assert importlib.import_module("osmosis_ai.rollout.core.base").RolloutContext is rollout.RolloutContext


@pytest.mark.imports_much
@pytest.mark.parametrize("path", NAMES_OF_PATHS)
def test_names_of_a_public_path(path: str) -> None:
    module = importlib.import_module(f"osmosis_ai.{path}")

    assert attrgetter(path)(osmosis_ai) is module
    assert [name for name in NAMES_OF_PATHS[path].split() if not hasattr(module, name)] == []
    assert not hasattr(module, "nonsense")


@pytest.mark.integration
def test_imports_are_light() -> None:
    loaded = run_python(
        """
        import sys
        import osmosis_ai, osmosis_ai.rollout as rollout
        assert not [name for name in sys.modules if name.startswith("osmosis_ai.rubric")]
        import osmosis_ai.eval.rubric
        from osmosis_ai import MissingAPIKeyError, RubricResult, evaluate_rubric, osmosis_reward
        loaded = {"aiohttp", "httpx", "litellm", "numpy", "pydantic", "stamina"} & set(sys.modules)
        assert not loaded, loaded
        for package in (osmosis_ai, rollout):
            for name in package.__all__:
                getattr(package, name)
        from osmosis_ai.rollout import client, config, testing, tools, utils, validator
        heavy = {"agents", "aiohttp", "fastapi", "harbor", "litellm", "starlette", "strands", "uvicorn"}
        print(heavy & set(sys.modules) or "nothing")
        """
    )
    assert loaded == "nothing"
