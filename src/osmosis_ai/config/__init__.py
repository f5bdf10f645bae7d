"""What a config says: its sections and their keys, declared once for files, the wire, a platform and the trainer."""
