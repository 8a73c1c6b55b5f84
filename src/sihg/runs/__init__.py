"""What a run leaves behind, and how it is stopped without losing it."""
