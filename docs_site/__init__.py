"""Prepare the pages of the documentation for mkdocs and zensical: `python -m docs_site`.

`build/docs` gets the pages of `docs/`, the executed notebooks, the API reference and the files that pages link to.
"""
