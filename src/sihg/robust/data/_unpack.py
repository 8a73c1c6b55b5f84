"""Unpack compressed bytes up to a limit: a small file can unpack to any number of bytes."""

import zlib

from sihg.robust.data.locations import UnreadableError

GZIP = 16 + zlib.MAX_WBITS  # a header and a CRC of gzip
ZLIB = zlib.MAX_WBITS


def unpack(data: bytes | memoryview, limit: int, kind: int = GZIP) -> bytes:
    """Unpack one gzip or zlib stream and check its sum; of a longer one, return the first limit + 1 bytes."""
    unpacker = zlib.decompressobj(wbits=kind)
    try:
        unpacked = unpacker.decompress(data, limit + 1)
    except (zlib.error, MemoryError) as error:
        raise UnreadableError(str(error) or "out of memory") from error
    if len(unpacked) <= limit and not unpacker.eof:
        raise UnreadableError("it is cut short")
    return unpacked
