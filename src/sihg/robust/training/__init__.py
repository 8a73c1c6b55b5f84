"""Training: settings, the checks before a run, the loop, its state, schedules and optimisers."""
