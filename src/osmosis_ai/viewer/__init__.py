"""One viewer of runs: what its pages, reports and terminal show, and where it comes from."""
