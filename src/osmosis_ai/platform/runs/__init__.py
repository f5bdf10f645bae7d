"""Runs: submitted as rows, executed by workers that own them for a while, read while they go on.

``submit`` makes the row, ``leases`` says who may write it, ``execute`` starts workers, ``work`` is what a worker does
and makes visible, ``read`` shows it. ``lifecycle`` says what can become of a run, ``working_directory`` where it lies.
"""
