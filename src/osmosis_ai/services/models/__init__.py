"""Models on the platform: list, deploy, download."""
