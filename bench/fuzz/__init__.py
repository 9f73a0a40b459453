"""Damaged and hostile inputs: see `__main__`."""
