"""Whatever the user holds becomes a checked, scaled matrix with three reads: rows, columns, a dense block."""
