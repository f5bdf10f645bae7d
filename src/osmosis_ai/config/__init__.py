"""Configs: sections and keys, declared once for files, the wire, the platform and the trainer."""
