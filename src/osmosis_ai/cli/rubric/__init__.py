"""Judging files of answers against a rubric: `osmosis eval rubric`, `osmosis eval-rubric`, `osmosis preview`."""
