"""Walks through real data: what docs/walks/ shows, computed again."""
