"""Write and read .npz files: whole or absent, sealed, never unpickled, and never larger in memory than announced."""

import io
import zipfile
import zlib
from collections.abc import Collection, Mapping
from math import prod
from pathlib import Path
from tokenize import TokenError
from typing import TYPE_CHECKING

from sihg.errors import InputError
from sihg.store.files import read_regular, write_bytes
from sihg.store.seal import NO_SUM, require_seal, seal

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike, NDArray

MAX_BYTES = 2**32  # of a file, and of all its arrays together
_COMMENT_LENGTH = 2  # bytes at the end of an archive without a comment


def write_arrays(
    path: str | Path, arrays: "Mapping[str, ArrayLike]", *, compressed: bool = True, key: bytes | None = None
) -> Path:
    """Write arrays to a sealed .npz file; a failure or a kill at any moment leaves the old file or none.

    Args:
        path: The file. Missing parent folders are made.
        arrays: The arrays by name.
        compressed: Whether to spend time on a smaller file.
        key: Seal the file with this key, so that only its owner can have written it.
    Returns:
        The path.
    Example:
        >>> write_arrays("a.npz", {"margin": [0.5, -1.0]}).name
        'a.npz'
    """
    import numpy as np

    buffer = io.BytesIO()
    (np.savez_compressed if compressed else np.savez)(buffer, **arrays)  # type: ignore[arg-type]
    comment = NO_SUM.encode()  # the archive's comment, which readers skip
    data = buffer.getvalue()[:-_COMMENT_LENGTH] + len(comment).to_bytes(2, "little") + comment
    return write_bytes(path, seal(data, key))


def reseal_arrays(path: Path) -> None:
    """Give an .npz file that was edited on purpose a new seal."""
    data = read_regular(path, MAX_BYTES)
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            _load(archive, path, None, MAX_BYTES)
            end = len(data) - len(archive.comment)
    except (zipfile.BadZipFile, zlib.error, ValueError, KeyError, EOFError) as error:
        raise InputError("arrays-unreadable", path=path, why=error) from error
    comment = NO_SUM.encode()
    write_bytes(path, seal(data[: end - _COMMENT_LENGTH] + len(comment).to_bytes(2, "little") + comment))


def read_arrays(
    path: str | Path,
    names: Collection[str] | None = None,
    *,
    sealed: bool = True,
    key: bytes | None = None,
    limit: int = MAX_BYTES,
) -> "dict[str, NDArray[np.generic]]":
    """Read arrays of an .npz file; nothing is unpickled.

    Args:
        path: The file.
        names: The arrays to read (default: all). Names that the file does not have are left out.
        sealed: Whether the file must carry a seal. A seal that it carries is checked in any case.
        key: The key that it must be sealed with.
        limit: The most bytes that the file, or all its arrays together, may have.
    Returns:
        The arrays by name.
    Raises:
        InputError: The file is missing, damaged, too large, or not an .npz file.
    Example:
        >>> _ = write_arrays("a.npz", {"margin": [0.5, -1.0], "label": [1, 2]})
        >>> read_arrays("a.npz", ["margin"])
        {'margin': array([ 0.5, -1. ])}
    """
    path = Path(path)
    try:
        data = read_regular(path, limit)
        require_seal(path, data, sealed=sealed, key=key)
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            return _load(archive, path, names, limit)
    except InputError:
        raise
    except (
        *(OSError, ValueError, EOFError, KeyError, NotImplementedError, MemoryError, OverflowError, RuntimeError),
        *(zipfile.BadZipFile, zlib.error, SyntaxError, TokenError, TypeError, AttributeError, IndexError),
    ) as error:
        why = (str(getattr(error, "strerror", None) or error) or repr(error)).split("\n")[0]
        raise InputError("arrays-unreadable", path=path, why=why) from error


def _load(
    archive: zipfile.ZipFile, path: Path, names: Collection[str] | None, limit: int
) -> "dict[str, NDArray[np.generic]]":
    import numpy as np

    members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
    wanted = {name: info for name, info in members.items() if names is None or name in names}
    if (total := sum(info.file_size for info in wanted.values())) > limit:
        raise InputError("arrays-too-large", path=path, bytes=total, limit=limit)
    found = {}
    for name, info in wanted.items():
        with archive.open(info) as file:
            version = np.lib.format.read_magic(file)
            reader = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
            shape, _, dtype = reader(file)
            if dtype.hasobject or prod(shape) * dtype.itemsize > info.file_size:  # before the space is taken
                raise ValueError(f"{name} announces {prod(shape)} values of type {dtype}")
        with archive.open(info) as file:
            found[name] = np.lib.format.read_array(file, allow_pickle=False)
    return found
