"""Rewards that can be verified: text in, `Verdict` out. Imports no Ray, no model library."""
