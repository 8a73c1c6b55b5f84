"""Semi-implicit hybrid gradient methods for minimax optimisation and adversarially robust training."""
