"""The paper's second table, as printed: accuracy in percent, for LS and DUFS with the number of columns."""

METHODS = ("LS", "MCFS", "NDFS", "LLCFS", "SRCFS", "CAE", "DUFS", "all features")
ACCURACY: dict[str, tuple[float, ...]] = {
    "GISETTE": (75.8, 56.5, 69.3, 72.5, 68.5, 77.3, 99.5, 74.4),
    "PIX10": (76.6, 75.9, 76.7, 69.1, 76.0, 94.1, 88.4, 74.3),
    "COIL20": (55.2, 59.7, 60.1, 48.1, 59.9, 65.6, 65.8, 53.6),
    "Yale": (42.7, 41.7, 42.5, 42.6, 46.3, 45.4, 47.9, 38.3),
    "TOX-171": (47.5, 42.5, 46.1, 46.7, 45.8, 44.4, 49.1, 41.5),
    "ALLAML": (73.2, 68.4, 69.4, 77.8, 67.7, 72.2, 74.5, 67.3),
    "PROSTATE": (57.5, 57.3, 58.3, 57.8, 60.6, 56.9, 64.7, 58.1),
    "RCV1": (54.9, 50.1, 55.1, 55.0, 53.7, 54.9, 60.2, 50.0),
    "ISOLET": (56.4, 62.1, 60.4, 52.3, 60.1, 63.8, 63.6, 60.8),
}
N_FEATURES: dict[str, dict[str, int]] = {
    "LS": {"GISETTE": 50, "PIX10": 150, "COIL20": 250, "Yale": 300, "TOX-171": 200, "ALLAML": 150, "PROSTATE": 300,
           "RCV1": 300, "ISOLET": 300},
    "DUFS": {"GISETTE": 50, "PIX10": 50, "COIL20": 250, "Yale": 200, "TOX-171": 50, "ALLAML": 100, "PROSTATE": 150,
             "RCV1": 300, "ISOLET": 150},
}  # fmt: skip
# Later papers, by the same kind of table: LS-CAE, Shaham et al., Neural Networks 152:34, 2022;
# Lifshitz et al., arXiv 2511.09166, which ran DUFS again, chosen with the labels and without
LATER: dict[str, dict[str, float]] = {
    "LS-CAE": {"PIX10": 94.5, "COIL20": 61.8, "TOX-171": 48.3, "PROSTATE": 71.4, "RCV1": 83.7},
    "DUFS again, oracle": {"ALLAML": 71.5, "Yale": 42.6},
    "DUFS again, label-free": {"ALLAML": 66.1, "Yale": 43.3},
}
MEAN_RANKS = dict(zip(METHODS[:-1], (4.1, 6, 3.9, 4.6, 4.7, 3.4, 1.3), strict=True))


def accuracy(data: str, method: str) -> float | None:
    """What the paper prints, for DUFS-R its DUFS; None where it has no such row."""
    row = dict(zip(METHODS, ACCURACY.get(data, ()), strict=data in ACCURACY))
    return row.get(method.removesuffix("-R"))


def n_features(data: str, method: str) -> int | None:
    """The number of columns that the paper prints beside it."""
    return N_FEATURES.get(method.removesuffix("-R"), {}).get(data)
