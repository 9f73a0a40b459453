"""
Sparse counts
=============

Words in texts on two subjects: 300 columns of small counts, 30 of them more frequent in one subject than in the other.
The matrix stays sparse (except for the rows that decoys are made from), and ``transform`` returns a sparse matrix.
Words are selected at a false discovery rate of 0.1.
"""

import matplotlib.pyplot as plt
import numpy as np
from scipy.sparse import csr_array

from dufs_core import DUFS

rng = np.random.default_rng(0)
subject = np.repeat([0, 1], 100)
rate = np.full((200, 300), 0.05)
rate[:100, :15] = rate[100:, 15:30] = 1.0  # words 0 to 14 of one subject, 15 to 29 of the other
X = csr_array(np.log1p(rng.poisson(rate)))
print(f"{X.shape[0]} texts, {X.shape[1]} words, {X.nnz / np.prod(X.shape):.1%} of the entries stored")

selector = DUFS(random_state=0).fit(X)
chosen = selector.support_.nonzero()[0]
print(f"{len(chosen)} words are selected, {(chosen < 30).sum()} of the 30 among them")
print(type(selector.transform(X)).__name__)

fig, (left, right) = plt.subplots(1, 2, figsize=(10, 3.4), layout="constrained")
left.spy(X, markersize=0.6, aspect="auto", color="0.2")
left.set(title="stored entries", xlabel="word", ylabel="text")
right.plot(selector.scores_, ".", color="0.6")
right.plot(selector.scores_[:30], ".", color="C3")
right.set(title="scores, the words of the subjects in red", xlabel="word", ylabel="score")
plt.show()
