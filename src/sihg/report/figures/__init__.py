"""Draw figures from records."""
