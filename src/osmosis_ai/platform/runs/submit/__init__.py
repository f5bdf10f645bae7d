"""Submit, retry and resume runs."""
