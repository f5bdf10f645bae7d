"""Helpers of all routes: authentication, errors, limits and paging."""
