"""The viewer over a platform: its runs as one visitor may see them, and what they may change there."""
