"""`python -m docs_site`: prepare build/docs. `--no-notebooks` leaves the notebooks as they are there."""

import argparse
import os
import shutil
import sys

from docs_site import api, commands, notebooks
from docs_site.pages import DOCS, OUT, ROOT, Site, copy_assets


def main() -> None:
    """Write all pages."""
    parser = argparse.ArgumentParser(prog="python -m docs_site", description=__doc__)
    parser.add_argument("--no-notebooks", action="store_true", help="show the code of notebooks without running it")
    run = not parser.parse_args().no_notebooks
    site = Site()
    if run:  # a server goes on with the pages that are there
        shutil.rmtree(OUT, ignore_errors=True)
    OUT.mkdir(parents=True, exist_ok=True)
    copy_assets()
    for page in sorted(DOCS.rglob("*.md")):
        site.add(notebooks.repository_path(page), page.read_text(encoding="utf-8"))
    for path in notebooks.sources():
        print(f"{path} ...", file=sys.stderr, flush=True)
        site.add(path, notebooks.as_markdown(notebooks.read(ROOT / path, execute=run), path))
    site.add_linked_files()
    commands.write_page()
    api.write_pages()
    print(f"{sum(1 for _ in OUT.rglob('*.md'))} pages in {os.path.relpath(OUT)}", file=sys.stderr)


if __name__ == "__main__":
    main()
