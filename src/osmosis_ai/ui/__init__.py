"""Styles, scripts, charts and text rules shared by all pages and reports."""
