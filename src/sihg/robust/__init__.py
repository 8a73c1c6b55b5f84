"""Adversarially robust training: data, models, attacks, methods, the trainer and the evaluation."""
