"""The worker's side of execution: the inputs of a run, the work on it, and what of it becomes visible."""
