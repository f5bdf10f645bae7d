"""Training runs of the platform: estimated before, followed while they go on, compared after."""
