"""Agent loops of one's own module: `osmosis serve`, `osmosis validate`, `osmosis test`, `osmosis eval -m`."""
