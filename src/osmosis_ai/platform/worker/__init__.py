"""Workers: processes that execute the shards of runs, and the hosts that start them."""
