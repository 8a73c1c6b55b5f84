"""Group the warnings of a page: by the check that gave them, and then by their text."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from sihg.report.read.evaluations import Remark
from sihg.store.statistics import group_similar

ERROR = "error: "  # begins a text that is more than a warning


class PageWarning(NamedTuple):
    """A warning, and the names of what it is about."""

    names: Sequence[str]
    text: str


class WarningGroup(NamedTuple):
    """The warnings that one check gave; without a name, those of no check."""

    check: str
    warnings: Sequence[PageWarning]

    @property
    def is_error(self) -> bool:
        """Whether one of them says that a figure is wrong."""
        return any(warning.text.startswith(ERROR) for warning in self.warnings)


def page_warnings(
    remarks: Sequence[tuple[str, Remark]], entries: Mapping[str, Sequence[str]] | None = None
) -> list[WarningGroup]:
    """Group warnings, given with the name of what they are about; those of one check may differ in numbers.

    Args:
        remarks: The names and the warnings.
        entries: The names of the runs of each entry. If all of them have a warning, the entry is named instead.
    """
    by_check: dict[str, dict[tuple[str, str], None]] = {}
    for name, remark in remarks:
        by_check.setdefault(remark.check, {})[name, remark.text] = None
    groups = []
    for check, pairs in by_check.items():
        warnings = []
        for group in group_similar(pairs):
            name, text = next(iter(group.items()))
            more = "" if len(set(group.values())) == 1 else f" ({name}; the others have other numbers)"
            warnings.append(PageWarning(_names(list(group), entries or {}), text + more))
        groups.append(WarningGroup(check, warnings))
    return groups


def _names(names: Sequence[str], entries: Mapping[str, Sequence[str]]) -> list[str]:
    """Name an entry instead of its runs where all of them are named; "all" if all entries are."""
    whole = {entry: runs for entry, runs in entries.items() if set(runs) <= set(names)}
    if len(whole) == len(entries) > 1:
        return ["all"]
    owners = {run: entry for entry, runs in whole.items() for run in runs}
    return list(dict.fromkeys(owners.get(name, name) for name in names))
