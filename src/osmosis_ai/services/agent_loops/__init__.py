"""What the commands about agent loops do."""
