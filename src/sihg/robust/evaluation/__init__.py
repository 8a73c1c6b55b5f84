"""Robustness evaluation: attack a model, check the result, store it and continue an interrupted one."""
