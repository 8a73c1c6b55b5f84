"""A table on the terminal."""

from collections.abc import Sequence

ELSEWHERE = 140  # columns where there is no terminal
AROUND = 3  # columns that a border and its spaces take, for each cell and once more


def drawn(about: str, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table under a line that says what it is about; cells wrap where the terminal is narrow, words are never cut."""
    from rich.console import Console
    from rich.table import Table

    room = Console().width if Console().is_terminal else ELSEWHERE
    table = Table()
    for i, (heading, width) in enumerate(zip(headings, _widths(headings, rows, room), strict=True)):
        table.add_column(heading, justify="right" if i else "left", width=width)
    for row in rows:
        table.add_row(*row)
    needed = sum(column.width or 0 for column in table.columns) + AROUND * len(headings) + 1
    console = Console(width=max(room, needed), emoji=False)
    with console.capture() as capture:
        console.print(about, highlight=False, markup=False, soft_wrap=True)
        console.print(table, markup=False)
    return capture.get().rstrip()


def _widths(headings: Sequence[str], rows: Sequence[Sequence[str]], room: int) -> list[int]:
    """As wide as the longest word of each column, then, from the left, as its longest cell, as far as there is room."""
    from rich.cells import cell_len

    columns = list(zip(headings, *rows, strict=True))
    least = [max(cell_len(word) for cell in column for word in cell.split(" ")) for column in columns]
    most = [max(map(cell_len, column)) for column in columns]
    spare = room - sum(least) - AROUND * len(columns) - 1
    widths = []
    for low, high in zip(least, most, strict=True):
        more = max(0, min(spare, high - low))
        widths.append(low + more)
        spare -= more
    return widths
