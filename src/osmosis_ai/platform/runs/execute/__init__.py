"""The platform's side of execution: a worker process for every run that needs one, seen to its end."""
