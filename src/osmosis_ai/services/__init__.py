"""What a command does, one module per sub-app: plain values in, dataclasses out, no terminal."""
