"""The kit under every page and report: policy, tokens, charts, the rules for hostile text; it knows nothing of runs."""
