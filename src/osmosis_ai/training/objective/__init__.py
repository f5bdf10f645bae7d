"""What is learned: sampled tokens as tensors, advantages, log-probabilities and losses, and the numbers that tell of them."""
