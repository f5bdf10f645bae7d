"""Evaluations that ran elsewhere: announced (``announcement``), received (``sessions``), made a run (``imported_run``)."""
