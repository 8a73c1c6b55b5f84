"""Shared set-up: one thread a test process, since two processes run side by side."""

import torch

torch.set_num_threads(1)
