"""
Choosing the price
==================

``LambdaPath`` fits several prices and judges each on rows that took no part in its choice of columns.
"""

import matplotlib.pyplot as plt

from dufs_core import LambdaPath, plotting, report
from dufs_core.datasets import two_moons

X = two_moons(n_features=12, random_state=0).X
path = LambdaPath(random_state=0).fit(X)
print(report(path, X).text(most=4))

fig, (left, right) = plt.subplots(1, 2, figsize=(10, 3.8), layout="constrained")
plotting.lambda_path(path, left)
plotting.path_criterion(path, right)
plt.show()
