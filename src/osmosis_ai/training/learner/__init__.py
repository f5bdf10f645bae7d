"""The learner: adapter, forward and backward passes over one or more devices, checkpoints."""
