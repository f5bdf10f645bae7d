"""LLM judges: score texts against a rubric and measure the agreement of judges."""
