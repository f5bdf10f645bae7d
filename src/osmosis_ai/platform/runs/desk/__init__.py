"""The platform's side of the worker protocol: runs are claimed, what workers find out is taken, and runs are closed."""
