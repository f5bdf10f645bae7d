"""A request becomes a run: checked whole, its rows chosen, its name drawn, its row written; or an ended run goes on."""
