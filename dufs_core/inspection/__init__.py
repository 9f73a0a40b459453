"""A fitted selector as words, tables, pictures and measures."""
