"""A run's folder: what it holds, and what is made of it afterwards. No torch."""
