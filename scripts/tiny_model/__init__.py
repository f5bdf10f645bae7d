"""How the built-in policy `osmosis/tiny` is made: data, tokenizer, training, evaluation, card."""
