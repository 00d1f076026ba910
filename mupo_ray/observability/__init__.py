"""What a run records and shows: metric names, trackers, the console's step lines."""
