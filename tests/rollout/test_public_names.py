"""Every name and path that code written for either line of the hosted SDK imports."""

from __future__ import annotations

import importlib
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import osmosis_ai
from osmosis_ai import rollout

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


@pytest.mark.imports_much
@pytest.mark.parametrize(
    "name", ["ControllerAuth", "create_rollout_server", "OsmosisRolloutModel", "nonsense"]
)
def test_the_package_does_not_offer_what_needs_an_extra(name: str) -> None:
    with pytest.raises(AttributeError, match=name):
        getattr(importlib.import_module("osmosis_ai.rollout"), name)


@pytest.mark.imports_much
@pytest.mark.parametrize("path", PATHS)
def test_every_documented_path_has_its_names(path: str) -> None:
    module = importlib.import_module(path)

    assert [name for name in PATHS[path].split() if not hasattr(module, name)] == []


@pytest.mark.imports_much
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


@pytest.mark.imports_much
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


@pytest.mark.imports_much
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


@pytest.mark.imports_much
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


OF_AGENT_LOOPS = """
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
OF_WORKFLOWS = """
    AgentWorkflow AgentWorkflowConfig AgentWorkflowContext AgentWorkflowOutput BaseConfig
    ConcurrencyConfig ExecutionBackend ExecutionRequest ExecutionResult Grader GraderCompleteRequest
    GraderConfig GraderContext GraderInitRequest GraderInitResponse GraderStatus LocalBackend
    MessageDict RolloutCompleteRequest RolloutContext RolloutErrorCategory RolloutInitRequest
    RolloutInitResponse RolloutSample RolloutStatus SampleSource get_rollout_context
"""
OURS = ["CommandWorkflow"]
TOP_LEVEL = """
    __version__ osmosis_reward osmosis_rubric evaluate_rubric MissingAPIKeyError ProviderRequestError
    ModelNotFoundError RolloutAgentLoop RolloutContext RolloutResult OsmosisLLMClient CompletionsResult
    register_agent_loop get_agent_loop list_agent_loops RolloutRequest RolloutResponse InitResponse
    OpenAIFunctionToolSchema RolloutMetrics OsmosisRolloutError OsmosisTransportError OsmosisServerError
    OsmosisValidationError OsmosisTimeoutError create_app
"""

# Path of 0.2 -> names that are imported from it.
NAMES_OF_PATHS = {
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
    "rollout.server": "create_app create_rollout_server AppState serve_agent_loop",
    "rollout.server.api_key": "generate_api_key validate_api_key",
    "rollout.server.registration": "start_registering",
    "rollout.server.serve": "serve_agent_loop validate_and_report ServeError",
    "rollout.server.state": "AppState",
    "rollout.server.app": "create_app create_rollout_server AppState",
    "rollout.testing": "create_mock_trainer_app RolloutCompletionTracker patch_httpx_for_mock_trainer "
    "fake_token_ids fake_prompt_token_ids",
    "rollout.utils": "count_messages_by_role get_message_content get_message_role is_assistant_message "
    "is_tool_message is_user_message normalize_stop parse_tool_calls",
    "rollout.validator": "validate_agent_loop ValidationResult",
}


def test_every_name_of_both_lines_is_there_and_no_other() -> None:
    assert (len(OF_AGENT_LOOPS.split()), len(OF_WORKFLOWS.split()), len(TOP_LEVEL.split())) == (76, 27, 26)
    assert set(rollout.__all__) == {*OF_AGENT_LOOPS.split(), *OF_WORKFLOWS.split(), *OURS}
    assert [name for name in rollout.__all__ if getattr(rollout, name) is None] == []
    assert set(dir(rollout)) >= set(rollout.__all__)


def test_every_name_of_the_top_level_is_the_thing_that_rollout_has() -> None:
    assert set(TOP_LEVEL.split()) <= set(osmosis_ai.__all__)
    for name in TOP_LEVEL.split():
        assert getattr(osmosis_ai, name) is getattr(rollout, name, getattr(osmosis_ai, name))


def test_the_three_names_that_both_lines_have_serve_both() -> None:
    status = rollout.RolloutStatus
    assert (status.COMPLETED, status.ERROR, status.SUCCESS) == ("COMPLETED", "ERROR", "success")
    assert rollout.MessageDict(role="user", content="hi") == {"role": "user", "content": "hi"}
    assert rollout.RolloutContext is osmosis_ai.RolloutContext
    assert importlib.import_module("osmosis_ai.rollout.core.base").RolloutContext is rollout.RolloutContext


@pytest.mark.parametrize("path", NAMES_OF_PATHS)
def test_a_path_of_0_2_has_its_names(path: str) -> None:
    module = importlib.import_module(f"osmosis_ai.{path}")

    assert [name for name in NAMES_OF_PATHS[path].split() if not hasattr(module, name)] == []
    assert not hasattr(module, "nonsense")


@pytest.mark.integration
def test_importing_and_naming_everything_loads_neither_web_framework_nor_litellm() -> None:
    code = """
        import sys
        import osmosis_ai, osmosis_ai.rollout as rollout
        assert not {"pydantic", "httpx"} & set(sys.modules), "the bare import loads nothing"
        for name in osmosis_ai.__all__:
            getattr(osmosis_ai, name)
        for name in rollout.__all__:
            getattr(rollout, name)
        from osmosis_ai.rollout import client, config, testing, tools, utils, validator
        print({"fastapi", "litellm", "uvicorn", "starlette"} & set(sys.modules) or "nothing")
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stdout.strip()) == (0, "nothing"), done.stderr
