"""
A path of lambdas
=================

``lam`` regularises the number of open gates: the larger it is, the fewer features are selected. A ``LambdaPath`` fits
several lambdas together and chooses among them without labels: columns that one half of the rows selects are tested on
the other.
"""

import matplotlib.pyplot as plt
from sklearn.datasets import load_wine

from dufs_core import GatedLaplacian, LambdaPath
from dufs_core.inspection import plotting

wine = load_wine(as_frame=True)
X = wine.data[::2]  # 89 wines, 13 measurements
path = LambdaPath(GatedLaplacian(max_runs=1, max_iter=1000), n_lams=6, n_splits=1, random_state=0).fit(X)
for lam, number, z in zip(path.lams_, path.n_selected_, path.held_out_z_, strict=True):
    print(f"lam {lam:.3f}: {number:2d} open, {z:5.1f} standard deviations above shuffled columns on held-out rows")
print("chosen:", ", ".join(path.get_feature_names_out()))

fig, (left, right) = plt.subplots(1, 2, figsize=(11, 4), layout="constrained")
plotting.lambda_path(path, left, names=wine.feature_names)
plotting.path_criterion(path, right)
plt.show()
