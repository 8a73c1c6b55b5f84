"""Adversarially robust training: data, models, attacks, methods, training and evaluation.

Data flows through these rooms in this order; each imports only from those before it.
"""
