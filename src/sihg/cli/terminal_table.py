"""Format tables for the terminal."""

from collections.abc import Sequence

DEFAULT_COLUMNS = 140  # of the screen, if the output is not a terminal
BORDER = 3  # columns that a border and its spaces take per cell, and once more


def format_table(title: str, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table under its title; cells wrap on a narrow terminal, words are never cut."""
    from rich.console import Console
    from rich.table import Table

    screen = Console().width if Console().is_terminal else DEFAULT_COLUMNS
    table = Table()
    for i, (heading, width) in enumerate(zip(headings, _widths(headings, rows, screen), strict=True)):
        table.add_column(heading, justify="right" if i else "left", width=width)
    for row in rows:
        table.add_row(*row)
    needed = sum(column.width or 0 for column in table.columns) + BORDER * len(headings) + 1
    console = Console(width=max(screen, needed), emoji=False)
    with console.capture() as capture:
        console.print(title, highlight=False, markup=False, soft_wrap=True)
        console.print(table, markup=False)
    return capture.get().rstrip()


def _widths(headings: Sequence[str], rows: Sequence[Sequence[str]], screen: int) -> list[int]:
    """Give each column the width of its longest word; then widen columns from the left while there is room."""
    from rich.cells import cell_len

    columns = list(zip(headings, *rows, strict=True))
    least = [max(cell_len(word) for cell in column for word in cell.split(" ")) for column in columns]
    most = [max(map(cell_len, column)) for column in columns]
    spare = screen - sum(least) - BORDER * len(columns) - 1
    widths = []
    for low, high in zip(least, most, strict=True):
        more = max(0, min(spare, high - low))
        widths.append(low + more)
        spare -= more
    return widths
