"""Write one self-contained HTML page."""
