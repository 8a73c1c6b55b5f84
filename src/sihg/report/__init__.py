"""Folders of results turned into figures, tables and one HTML page; nothing here needs torch."""
