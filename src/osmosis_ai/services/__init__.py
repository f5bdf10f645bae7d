"""The logic of commands, one module per sub-app: plain values in, dataclasses out, no terminal."""
