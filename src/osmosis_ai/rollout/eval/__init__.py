"""Local tests and evaluations of agent loops, under the paths that 0.2 had."""
