"""What there is of the named data sets on this machine."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from sihg.errors import UnknownNameError
from sihg.robust.data import SOURCES, digits
from sihg.robust.data.file_checks import Verdict, examine, md5
from sihg.robust.data.locations import Source, data_folder, locate, usable


def overview(data_dir: str | Path | None = None) -> list[dict[str, Any]]:
    """Name, shape, classes, numbers, state and path of every named set, without reading its files.

    The state is bundled, present, absent, partial (parts are missing) or damaged (a file has an impossible size).
    """
    train, test = digits.load()
    first = _row("digits", "handwritten digits", train.shape, len(train.classes), (len(train), len(test)))
    rows = [{**first, "state": "bundled", "missing": [], "path": "with the package"}]
    return rows + [_found(source, data_folder(data_dir)) for source in SOURCES.values()]


def check_data_set(name: str, data_dir: str | Path | None = None) -> tuple[list[Verdict], list[str], bool]:
    """Read and hash every file of a set again: the verdicts, the missing parts, and whether `load` would succeed."""
    if name == "digits":
        path = Path(digits.__file__).with_name("digits.npz")
        verdict = Verdict(path, "ok", digits.MD5, md5(path))
        if verdict.found == verdict.expected:
            return [verdict], [], True
        return [replace(verdict, state="damaged", reason="other than in the package: install it again")], [], False
    if name not in SOURCES:
        raise UnknownNameError("data set to check", name, ["digits", *SOURCES])
    source, folder = SOURCES[name], data_folder(data_dir)
    found, missing = locate(source, folder)
    verdicts = [examine(source, path, pieces, folder, afresh=True)[0] for path, pieces in found.items()]
    good = usable(source, missing) and all(verdict.state != "damaged" for verdict in verdicts)
    return verdicts, [part.name for part in missing], good


def _row(name: str, about: str, shape: tuple[int, ...], classes: int, n: tuple[int, int]) -> dict[str, Any]:
    return {"name": name, "about": about, "shape": list(shape), "classes": classes, "train": n[0], "test": n[1]}


def _found(source: Source, folder: Path) -> dict[str, Any]:
    found, missing = locate(source, folder)
    sizes = [(path.stat().st_size, place.size) for path, pieces in found.items() for _, place in pieces]
    if any(size == 0 or (right and size != right) for size, right in sizes):
        state = "damaged"
    elif missing:
        state = "partial" if found else "absent"
    else:
        state = "present"
    path = next(iter(found)).parent if found else folder / source.published[0].path
    row = _row(source.name, source.about, source.shape, len(source.classes), source.n)
    where = str(path if found else path.parent)
    return {**row, "state": state, "missing": [part.name for part in missing], "path": where}
