"""`dufs_core.DUFS`: columns that beat their shuffled copies, at a false discovery rate."""
