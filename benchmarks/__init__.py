"""Benchmarks of speed and memory: `python -m benchmarks --help`."""
