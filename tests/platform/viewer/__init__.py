"""A platform as the viewer shows it."""
