"""Turn folders of results into figures, tables and one HTML page. Nothing here needs torch."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from sihg.errors import InputError

if TYPE_CHECKING:
    from sihg.report.tables.run_comparison import Comparison

__all__ = ["compare", "pack", "report"]


def report(folders: str | Path | Sequence[str | Path]) -> list[Path]:
    """Write figures, tables and index.html into each folder of results.

    Args:
        folders: A folder, or several: of a training run, of several runs, of a solve, of a performance profile, or of
            evaluations (`Evaluation.save`, `sihg evaluate --out`).
    Returns:
        The files written.
    Raises:
        InputError: A folder has no results, or a file in it is damaged. Folders without results are refused before
            anything is written.
    Example:
        >>> report("nowhere")
        Traceback (most recent call last):
        sihg.errors.InputError: nowhere is not a folder (it does not exist): ...
    """
    from sihg.report.read.runs import result_kind
    from sihg.store.archive import is_archive

    paths = _paths(folders)
    if archive := next((path for path in paths if is_archive(path)), None):
        raise InputError("report-of-archive", path=archive)
    kinds = [result_kind(path) for path in paths]
    return [file for path, kind in zip(paths, kinds, strict=True) for file in _report(path, kind)]


def _report(folder: Path, kind: str) -> list[Path]:
    if kind == "solve":
        from sihg.report.solve_report import report_solve

        return report_solve(folder)
    if kind == "profile":
        from sihg.report.profile_report import report_profile

        return report_profile(folder)
    if kind == "evaluations":
        from sihg.report.evaluation_report import report_evaluations

        return report_evaluations(folder)
    from sihg.report.training_report import report_training

    return report_training(folder)


def compare(runs: str | Path | Sequence[str | Path], out: str | Path | None = None) -> "Comparison":
    """Put training runs side by side.

    Args:
        runs: Run folders, folders of run folders, or archives that `sihg pack` wrote.
        out: A folder for a page with figures and tables; None for no page.
    Returns:
        The comparison: its tables, numbers and notes.
    Raises:
        InputError: A folder has no runs, a file in it is damaged, or `out` is a file.
    Example:
        >>> compare("nowhere")
        Traceback (most recent call last):
        sihg.errors.InputError: nowhere does not exist: ...
    """
    from sihg.report.read.runs import read_runs
    from sihg.report.tables.run_comparison import compare_runs
    from sihg.store.archive import unpacked

    if out is not None and Path(out).is_file():
        raise InputError("report-out-is-a-file", out=out)
    with unpacked(_paths(runs)) as found:
        comparison = compare_runs(read_runs(found.folders), found.shown)
        if out is not None:
            from sihg.report.training_report import report_training

            report_training(found.folders, Path(out))
    return comparison


def pack(folders: str | Path | Sequence[str | Path], out: str | Path, *, overwrite: bool = False) -> int:
    """Write the records of runs into one zip file, which `compare` reads; nothing that weighs much.

    Args:
        folders: Run folders, or folders with run folders at any depth.
        out: The zip file to write.
        overwrite: Replace the file if it exists.
    Returns:
        The number of runs.
    Raises:
        InputError: There is no run, a record was changed after it was written, or `out` exists or is no .zip file.
    Example:
        >>> pack("nowhere", "records.zip")
        Traceback (most recent call last):
        sihg.errors.InputError: nowhere has no config.toml and no folder with one: ...
    """
    from sihg.store.archive import pack_runs

    return pack_runs(_paths(folders), out, overwrite=overwrite)


def _paths(folders: str | Path | Sequence[str | Path]) -> list[Path]:
    return [Path(folders)] if isinstance(folders, str | Path) else [Path(folder) for folder in folders]
