"""The viewer's pages on this machine, for the one person who started them."""
