"""Engines: ways to evaluate the same objective, with the same numbers within rounding."""
