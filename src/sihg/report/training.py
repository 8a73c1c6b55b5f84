"""`sihg report` on runs of `sihg train`: learning curves, tables and one HTML page."""

from functools import partial
from pathlib import Path

from sihg.errors import InputError
from sihg.report.curves import learning_curves
from sihg.report.page import Drawn
from sihg.report.style import save
from sihg.report.table import as_csv, as_markdown
from sihg.report.trained import called, read_run, run_folders
from sihg.report.training_page import page
from sihg.report.training_table import for_reading, training_table
from sihg.runs.files import write_text

CURVES = (
    "Accuracy on held-out samples as they are (solid) and under the attack of the run's evaluations (dotted): above "
    "over epochs, below over what was paid, forward-backward passes for each training sample. Runs that hold out no "
    "samples show the accuracy on those they train on (dashed)."
)


def report_training(folder: Path) -> list[Path]:
    """Write figure, tables and index.html into a run folder, or a folder that holds run folders; give their paths."""
    folder = Path(folder)
    paths = run_folders(folder)
    if not paths:
        raise InputError(f"{folder} has no config.toml, nor has a folder in it: give what `sihg train --out` made")
    runs = [read_run(path) for path in paths]
    svg, png = save(partial(learning_curves, runs), folder, "curves")
    made = training_table(runs)
    text = page(called(folder), runs, made, [Drawn(svg, png, "Learning curves", CURVES)])
    return [
        *(svg, png),
        write_text(folder / "table.csv", as_csv(made)),
        write_text(folder / "table.md", as_markdown(for_reading(made))),
        write_text(folder / "index.html", text),
    ]
