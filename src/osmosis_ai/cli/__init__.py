"""The command line: a folder per command group, a file per command, one place that renders.

A command file parses options, calls one service function and returns a result
(:mod:`osmosis_ai.cli.output.results`); everything else is the frame's.
"""
