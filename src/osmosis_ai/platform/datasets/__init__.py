"""Datasets of a workspace: ``store`` handles requests, ``uploads`` describes uploads, and ``ingest`` checks them.

``check`` checks one file, usually in a separate process; so this package imports nothing.
"""
