"""Read the records of runs, evaluations and solves."""
