"""Models as judges: score answers against a rubric, and measure the agreement of the judges."""
