"""Loggers of other programs, to which a run reports while it trains: TensorBoard, W&B, MLflow, Trackio.

Each is one file, and its package is imported only when it is asked for. Needs no torch.
"""

from sihg.loggers.base import LoggedRun, Logger, LoggerWarning
from sihg.loggers.registry import LOGGERS, check_names, split_names
from sihg.loggers.run_log import RunLog, continue_run_log, open_run_log, replay

__all__ = [
    "LOGGERS",
    "LoggedRun",
    "Logger",
    "LoggerWarning",
    "RunLog",
    "check_names",
    "continue_run_log",
    "open_run_log",
    "replay",
    "split_names",
]
