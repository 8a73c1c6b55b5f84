"""Formats in which trained models are given to others: the Hugging Face hub, RobustBench, ONNX, torch.export.

Example:
    >>> from sihg.formats import FORMATS
    >>> list(FORMATS)
    ['hf', 'robustbench', 'onnx', 'torch-export']
"""

from sihg.formats.export_run import FORMATS, Exported, export

__all__ = ["FORMATS", "Exported", "export"]
