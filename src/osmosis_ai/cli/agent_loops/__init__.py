"""Commands for agent loops: `osmosis serve`, `osmosis validate`, `osmosis test` and `osmosis eval -m`."""
