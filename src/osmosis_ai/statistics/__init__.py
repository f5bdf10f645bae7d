"""Estimates with confidence intervals, variance components and statistical power. The unit of independence is a row."""
