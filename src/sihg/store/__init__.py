"""What stays on disk: run folders, locks, files that are whole or absent, tables and records, without torch.

Checkpoints hold tensors and so need torch: they are in `sihg.store.checkpoint`.
"""

from sihg.store.arrays import read_arrays, write_arrays
from sihg.store.files import from_toml, to_toml, write_bytes, write_text
from sihg.store.run_folder import InUseError, RunFolder, locked
from sihg.store.tables import JsonLines, Table, read_json_lines, read_table
from sihg.store.verify import check_folder

__all__ = [
    "InUseError",
    "JsonLines",
    "RunFolder",
    "Table",
    "check_folder",
    "from_toml",
    "locked",
    "read_arrays",
    "read_json_lines",
    "read_table",
    "to_toml",
    "write_arrays",
    "write_bytes",
    "write_text",
]
