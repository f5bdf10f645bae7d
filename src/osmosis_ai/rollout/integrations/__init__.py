"""Other people's frameworks on a rollout's model."""
