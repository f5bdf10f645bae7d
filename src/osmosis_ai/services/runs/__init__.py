"""Platform runs of both kinds: submit, watch, read logs, download files."""
