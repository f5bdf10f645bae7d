"""Pages and reports of runs, for this machine and for a platform."""
