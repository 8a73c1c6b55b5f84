"""What stays on disk: run folders, locks, whole-or-absent files, checkpoints, tables."""
