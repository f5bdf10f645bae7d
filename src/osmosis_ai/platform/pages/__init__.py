"""The platform's pages, for browsers."""
