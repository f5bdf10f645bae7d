"""Agent frameworks, one module each. Each needs the extra of the same name."""
