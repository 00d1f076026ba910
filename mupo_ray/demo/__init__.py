"""The laptop task: picture puzzles, a small model, its warm start."""
