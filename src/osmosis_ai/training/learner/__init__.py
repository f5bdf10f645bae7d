"""Who learns: the policy's adapter, the passes of a step over one or more devices, and its checkpoints."""
