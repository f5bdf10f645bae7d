"""Runs: submitted as rows, executed by workers under leases, and readable while running.

``submit`` creates the row, ``leases`` controls write access, ``execute`` starts workers, ``work`` runs in a worker
and ``read`` shows results. ``lifecycle`` defines statuses, and ``working_directory`` the files.
"""
