"""The mathematics that minimax optimisation and robust training share."""
