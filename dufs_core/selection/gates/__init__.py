"""`dufs_core.GatedLaplacian`: the published gates, a search over their runs, and a choice of lambda without labels."""
