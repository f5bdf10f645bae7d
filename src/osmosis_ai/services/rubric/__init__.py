"""Judge sessions: from a file of answers and a rubric to scores, results and a report."""
