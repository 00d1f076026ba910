"""Whether an answer is the gold answer."""
