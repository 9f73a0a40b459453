"""
A frame in a pipeline
=====================

A pandas frame goes in, and a frame of the selected columns comes out, with their names. The data are thirteen
measurements of 178 wines. Their classes colour the picture, and judge the clusters afterwards.
"""

import matplotlib.pyplot as plt
from sklearn.cluster import KMeans
from sklearn.datasets import load_wine
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from dufs_core import DUFS
from dufs_core.inspection.metrics import clustering_accuracy

wine = load_wine(as_frame=True)
selector = DUFS(n_features_to_select=4, random_state=0).set_output(transform="pandas")
model = make_pipeline(selector, StandardScaler(), KMeans(3, n_init=10, random_state=0))
clusters = model.fit_predict(wine.data)
names = selector.get_feature_names_out()
print("selected:", ", ".join(names))
print(f"clusters agree with the classes on {clustering_accuracy(wine.target, clusters):.2f} of the wines")

fig, (left, right) = plt.subplots(1, 2, figsize=(11, 4), layout="constrained")
order = selector.order_[::-1]
left.barh(
    wine.data.columns[order], selector.scores_[order], color=["C3" if selector.support_[j] else "0.7" for j in order]
)
left.set(title="scores, the selected in red", xlabel="how much of a column its neighbours tell")
shown = selector.transform(wine.data)
right.scatter(shown[names[0]], shown[names[1]], c=wine.target, cmap="viridis", s=16)
right.set(title="two of the selected columns", xlabel=names[0], ylabel=names[1])
plt.show()
