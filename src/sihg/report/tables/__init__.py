"""Build tables from records."""
