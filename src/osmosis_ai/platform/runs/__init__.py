"""Runs: submitted as rows, executed by workers that own them for a while, read while they go on.

``request`` and ``submit`` make the row, ``leases`` says who may write it, ``executor`` starts workers,
``worker`` executes, ``publisher`` makes what it finds visible, ``reading`` and ``downloads`` show it.
"""
