"""The run queue: how runs reach the workers that execute them, and what the workers report."""
