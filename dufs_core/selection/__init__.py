"""From mu to columns one can defend: the estimator, its search, the order of columns, and the choice of lambda."""
