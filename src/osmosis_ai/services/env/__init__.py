"""The `.env` file of a workspace directory: what of it counts, and who allowed it."""
