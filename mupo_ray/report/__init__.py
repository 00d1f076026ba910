"""Pages that show runs and evaluations."""
