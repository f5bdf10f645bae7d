"""The objective of training: sampled tokens as tensors, advantages, log-probabilities and losses, and the numbers that tell of them."""

# Numbers in the float32 logits of one chunk: 256 MiB.
CHUNK_ELEMENTS = 2**26
