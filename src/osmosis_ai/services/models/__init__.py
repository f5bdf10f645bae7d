"""Models of the platform: listed, deployed, fetched."""
