"""Policy engines (in this process or vLLM), and the endpoint that records every token of a rollout."""
