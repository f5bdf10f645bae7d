"""The names and paths of both lines side by side: code written for either runs in one process."""

from __future__ import annotations

import importlib
import subprocess
import sys
import textwrap

import pytest

import osmosis_ai
from osmosis_ai import rollout

OF_AGENT_LOOPS = [
    "RolloutAgentLoop",
    "RolloutContext",
    "RolloutResult",
    "OsmosisLLMClient",
    "CompletionsResult",
    "LLMClientProtocol",
    "validate_agent_loop",
    "ValidationResult",
    "ValidationError",
    "AgentLoopValidationError",
    "AgentLoopRegistry",
    "register_agent_loop",
    "unregister_agent_loop",
    "get_agent_loop",
    "list_agent_loops",
    "RolloutRequest",
    "RolloutResponse",
    "InitResponse",
    "RolloutStatus",
    "RolloutMetrics",
    "CompletionsRequest",
    "CompletionsResponse",
    "CompletionsChoice",
    "CompletionUsage",
    "OpenAIFunctionToolSchema",
    "OpenAIFunctionSchema",
    "OpenAIFunctionParametersSchema",
    "OpenAIFunctionPropertySchema",
    "OpenAIFunctionParsedSchema",
    "OpenAIFunctionCallSchema",
    "OpenAIFunctionToolCall",
    "ToolResponse",
    "MessageDict",
    "SamplingParamsDict",
    "DEFAULT_MAX_METADATA_SIZE_BYTES",
    "get_max_metadata_size_bytes",
    "set_max_metadata_size_bytes",
    "OsmosisRolloutError",
    "OsmosisTransportError",
    "OsmosisServerError",
    "OsmosisValidationError",
    "OsmosisTimeoutError",
    "AgentLoopNotFoundError",
    "ToolExecutionError",
    "ToolArgumentError",
    "create_tool_result",
    "create_tool_error_result",
    "serialize_tool_result",
    "parse_tool_arguments",
    "get_tool_call_info",
    "execute_tool_calls",
    "parse_tool_calls",
    "normalize_stop",
    "get_message_content",
    "get_message_role",
    "is_assistant_message",
    "is_tool_message",
    "is_user_message",
    "count_messages_by_role",
    "detect_public_ip",
    "PublicIPDetectionError",
    "validate_ipv4",
    "is_valid_hostname_or_ip",
    "is_private_ip",
    "RolloutSettings",
    "RolloutClientSettings",
    "RolloutServerSettings",
    "get_settings",
    "configure",
    "reset_settings",
    "create_app",
    "serve_agent_loop",
    "validate_and_report",
    "ServeError",
    "DEFAULT_HOST",
    "DEFAULT_PORT",
]
OF_WORKFLOWS = [
    "AgentWorkflow",
    "AgentWorkflowConfig",
    "AgentWorkflowContext",
    "AgentWorkflowOutput",
    "BaseConfig",
    "ConcurrencyConfig",
    "ExecutionBackend",
    "ExecutionRequest",
    "ExecutionResult",
    "Grader",
    "GraderCompleteRequest",
    "GraderConfig",
    "GraderContext",
    "GraderInitRequest",
    "GraderInitResponse",
    "GraderStatus",
    "LocalBackend",
    "MessageDict",
    "RolloutCompleteRequest",
    "RolloutContext",
    "RolloutErrorCategory",
    "RolloutInitRequest",
    "RolloutInitResponse",
    "RolloutSample",
    "RolloutStatus",
    "SampleSource",
    "get_rollout_context",
]
OURS = ["CommandWorkflow"]
TOP_LEVEL = [
    "__version__",
    "osmosis_reward",
    "osmosis_rubric",
    "evaluate_rubric",
    "MissingAPIKeyError",
    "ProviderRequestError",
    "ModelNotFoundError",
    "RolloutAgentLoop",
    "RolloutContext",
    "RolloutResult",
    "OsmosisLLMClient",
    "CompletionsResult",
    "register_agent_loop",
    "get_agent_loop",
    "list_agent_loops",
    "RolloutRequest",
    "RolloutResponse",
    "InitResponse",
    "OpenAIFunctionToolSchema",
    "RolloutMetrics",
    "OsmosisRolloutError",
    "OsmosisTransportError",
    "OsmosisServerError",
    "OsmosisValidationError",
    "OsmosisTimeoutError",
    "create_app",
]

# Path of 0.2 -> the module that it is.
SAME_MODULE = {
    "rollout.client": "rollout.loop.client",
    "rollout.cli_utils": "rollout.loop.loading",
    "rollout.config": "rollout.loop.settings",
    "rollout.network": "rollout.loop.network",
    "rollout.registry": "rollout.loop.registry",
    "rollout.testing": "rollout.loop.testing",
    "rollout.tools": "rollout.loop.tools",
    "rollout.validator": "rollout.loop.validation",
    "rollout.server.api_key": "rollout.loop.api_key",
    "rollout.server.registration": "rollout.loop.server.registration",
    "rollout.server.serve": "rollout.loop.server.serve",
    "rollout.server.state": "rollout.loop.server.state",
    "rollout.core.exceptions": "rollout.loop.exceptions",
    "rollout.core.schemas": "rollout.loop.schemas",
    "utils": "rewards",
}
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
    assert (len(OF_AGENT_LOOPS), len(OF_WORKFLOWS), len(TOP_LEVEL)) == (76, 27, 26)
    assert set(rollout.__all__) == {*OF_AGENT_LOOPS, *OF_WORKFLOWS, *OURS}
    assert [name for name in rollout.__all__ if getattr(rollout, name) is None] == []
    assert set(dir(rollout)) >= set(rollout.__all__)


def test_every_name_of_the_top_level_is_the_thing_that_rollout_has() -> None:
    assert set(TOP_LEVEL) <= set(osmosis_ai.__all__)
    for name in TOP_LEVEL:
        assert getattr(osmosis_ai, name) is getattr(rollout, name, getattr(osmosis_ai, name))


def test_the_three_names_that_both_lines_have_serve_both() -> None:
    status = rollout.RolloutStatus
    assert (status.COMPLETED, status.ERROR, status.SUCCESS) == ("COMPLETED", "ERROR", "success")
    assert rollout.MessageDict(role="user", content="hi") == {"role": "user", "content": "hi"}
    assert rollout.RolloutContext is osmosis_ai.RolloutContext
    assert importlib.import_module("osmosis_ai.rollout.core.base").RolloutContext is rollout.RolloutContext


@pytest.mark.parametrize("path", SAME_MODULE)
def test_a_path_of_0_2_is_the_module_in_use_itself(path: str) -> None:
    old = importlib.import_module(f"osmosis_ai.{path}")

    assert old is importlib.import_module(f"osmosis_ai.{SAME_MODULE[path]}")
    parent, _, leaf = f"osmosis_ai.{path}".rpartition(".")
    assert getattr(importlib.import_module(parent), leaf) is old


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
