"""Estimates of means and rates, with confidence intervals that are clustered by row."""
