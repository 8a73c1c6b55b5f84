"""The folder of a performance profile: settings.json, a file per method and problem, and profile.json."""

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

from sihg.errors import InputError
from sihg.store.files import list_names, status, temporary_of
from sihg.store.profile_records import ProfileCell, ProfileSettings, SolverProfile
from sihg.store.run_folder import LOCK_NAME
from sihg.store.schema import read_record, record_text, write_record
from sihg.store.sums import refresh_sums

REMEDY = "remove it, and it is computed again"


@dataclass(frozen=True)
class ProfileFolder:
    """Reads and writes the files of a profile."""

    path: Path

    def begin(self, settings: ProfileSettings) -> None:
        """Write the settings, or raise InputError if the folder holds something else."""
        file = self.path / "settings.json"
        if status(file) is not None:
            if read_record(file, ProfileSettings, "choose another folder") != settings:
                raise InputError("profile-other-settings", path=self.path)
            return
        names = [name for name in list_names(self.path) if name != LOCK_NAME and not temporary_of(name)]
        if names:
            raise InputError("profile-folder-not-empty", path=self.path)
        write_record(file, settings)

    def read_cell(self, problem: str, method: str, identity: str) -> ProfileCell | None:
        """Read a cell; None if it has not been computed."""
        file = self._file(problem, method)
        if status(file) is None:
            return None
        cell = read_record(file, ProfileCell, REMEDY)
        if (cell.problem, cell.method, cell.settings) != (problem, method, identity):
            raise InputError("profile-other-cell", path=file)
        return cell

    def write_cell(self, cell: ProfileCell) -> None:
        """Write a cell, whole or not at all."""
        write_record(self._file(cell.problem, cell.method), cell)

    def write_profile(self, profile: SolverProfile) -> None:
        """Write profile.json."""
        with refresh_sums(self.path):
            write_record(self.path / "profile.json", profile)

    def _file(self, problem: str, method: str) -> Path:
        return self.path / "cells" / _file_name(problem) / f"{_file_name(method)}.json"


def identify(settings: ProfileSettings, options: str) -> str:
    """Return what tells the cells of a problem with these settings from others."""
    return hashlib.sha256((record_text(settings) + options).encode()).hexdigest()


def _file_name(label: str) -> str:
    """Return a label as the name of a file; one that has to be changed gets a sum, so that names stay different."""
    plain = re.sub(r"[^\w@+.=-]", "-", label)
    if plain == label and not label.startswith("."):
        return label
    return f"{plain.lstrip('.')}-{hashlib.sha256(label.encode()).hexdigest()[:8]}"
