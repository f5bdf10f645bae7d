"""Child processes that end with this process, and services that report readiness or an error.

``python -m osmosis_ai.processes PROGRAM ...`` does the same for a third-party program.
"""
