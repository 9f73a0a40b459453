"""The concrete autoencoder beside a PyTorch program of the same network: loss, reconstruction error, seconds.

python -m bench.concrete [--quick] [--data NAME ...] [--epochs N] [--seeds N] [--json FILE]

Both select k = 50 columns with a linear decoder, the same batch size, learning rate and temperatures, from starts of
the same distribution, in float32. `loss` is the mean of the last epoch; `error` is the mean squared error, on the
scaled columns, of least squares from the chosen columns to all (the paper's measure), on the rows held out: every
fifth. `random_error` is that for 50 random columns, the mean of ten draws. MNIST is the test images (t10k). Records of
other data in FILE are kept. --quick: COIL20, one seed, 20 epochs.
"""

from __future__ import annotations

import argparse
import gzip
import json
import time
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from scipy.io import loadmat

from bench.common import data_file, number_of_runs, save
from dufs_core.baselines import ConcreteAutoencoder
from dufs_core.baselines.concrete_autoencoder import distinct_choice
from dufs_core.data.dense import scale_columns

FILES = {"COIL20": "COIL20.mat", "MNIST": "t10k-images-idx3-ubyte.gz"}
SETTINGS = {"COIL20": (32, 0.01), "MNIST": (128, 0.01)}  # batch size, learning rate
K, TEMPERATURES = 50, (10.0, 0.01)


def load(name: str) -> Any:
    """Columns scaled to mean 0 and variance 1, constant ones left out; float32."""
    path = data_file(FILES[name])
    if path is None:
        return None
    if name == "MNIST":
        with gzip.open(path) as file:
            X = np.frombuffer(file.read(), dtype=np.uint8, offset=16).reshape(-1, 784)
    else:
        X = loadmat(path)["X"]
    data = scale_columns(X, "columns", np.float32)
    return np.ascontiguousarray(data.X[:, ~data.constant])


def peer(X: Any, epochs: int, batch_size: int, learning_rate: float, seed: int) -> tuple[float, Any]:
    """The same network, trained by torch.optim.Adam through autograd; the last epoch's loss and the logits."""
    import torch

    torch.manual_seed(seed)
    n, d = X.shape
    data = torch.from_numpy(X)
    logits = (torch.randn(K, d) * (2 / (K + d)) ** 0.5).requires_grad_()
    decoder = torch.nn.Linear(K, d)
    torch.nn.init.xavier_uniform_(decoder.weight)
    torch.nn.init.zeros_(decoder.bias)
    optimizer = torch.optim.Adam([logits, *decoder.parameters()], lr=learning_rate)
    for epoch in range(epochs):
        T = TEMPERATURES[0] * (TEMPERATURES[1] / TEMPERATURES[0]) ** (epoch / max(epochs - 1, 1))
        total = 0.0
        for rows in torch.tensor_split(torch.randperm(n), -(-n // batch_size)):
            batch = data[rows]
            gumbel = -torch.log(-torch.log(torch.rand(K, d).clamp(1e-20, 1 - 6e-8)))
            selected = batch @ torch.softmax((logits + gumbel) / T, dim=1).T
            loss = torch.nn.functional.mse_loss(decoder(selected), batch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item() * len(rows)
    return total / n, logits.detach().numpy().astype(np.float64)


def error(train: Any, test: Any, columns: Any) -> float:
    """Mean squared error on the test rows of least squares, with intercept, from the columns to all."""
    A = np.column_stack([train[:, columns], np.ones(len(train))]).astype(np.float64)
    B = np.column_stack([test[:, columns], np.ones(len(test))])
    return float(np.mean((B @ np.linalg.lstsq(A, train, rcond=None)[0] - test) ** 2))


def measure(name: str, X: Any, epochs: int, seeds: int) -> dict[str, Any]:
    """One record."""
    held_out = np.arange(len(X)) % 5 == 0
    train, test = X[~held_out], X[held_out]
    batch_size, learning_rate = SETTINGS[name]
    rows: dict[str, list[dict[str, Any]]] = {"ours": [], "peer": []}
    for seed in range(seeds):
        start = time.perf_counter()
        fitted = ConcreteAutoencoder(
            n_features_to_select=K, scaling="none", batch_size=batch_size, learning_rate=learning_rate,
            max_iter=epochs, temperatures=TEMPERATURES, random_state=seed,
        ).fit(train)  # fmt: skip
        seconds = time.perf_counter() - start
        rows["ours"].append(
            {
                "loss": round(fitted.loss_, 4), "error": round(error(train, test, fitted.support_), 4),
                "seconds": round(seconds, 2), "duplicates": fitted.n_duplicates_,
                "mean_max_probability": round(float(fitted.history_["mean_max_probability"][-1]), 3),
            }
        )  # fmt: skip
        if find_spec("torch") is not None:
            start = time.perf_counter()
            loss, logits = peer(train, epochs, batch_size, learning_rate, seed)
            seconds = time.perf_counter() - start
            chosen = distinct_choice(logits)
            probability = np.exp(logits - logits.max(axis=1, keepdims=True))
            probability /= probability.sum(axis=1, keepdims=True)
            rows["peer"].append(
                {
                    "loss": round(loss, 4), "error": round(error(train, test, chosen), 4),
                    "seconds": round(seconds, 2), "duplicates": int((chosen != logits.argmax(axis=1)).sum()),
                    "mean_max_probability": round(float(probability.max(axis=1).mean()), 3),
                }
            )  # fmt: skip
        print(name, seed, {who: runs[-1] for who, runs in rows.items() if runs}, flush=True)
    rng = np.random.default_rng(0)
    drawn = [error(train, test, rng.choice(X.shape[1], K, replace=False)) for _ in range(10)]
    return {
        "data": name, "n_train": len(train), "n_test": len(test), "d": X.shape[1], "k": K, "epochs": epochs,
        "batch_size": batch_size, "learning_rate": learning_rate, "random_error": round(float(np.mean(drawn)), 4),
        "ours": rows["ours"], "peer": rows["peer"] or "torch is not installed",
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="COIL20, one seed, 20 epochs")
    parser.add_argument("--data", nargs="+", choices=FILES, default=list(FILES))
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--seeds", type=number_of_runs, default=3)
    parser.add_argument("--json", metavar="FILE")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.data, arguments.epochs, arguments.seeds = ["COIL20"], 20, 1
    if find_spec("torch") is None:
        print("torch is not installed: our results only", flush=True)
    records = {}
    if arguments.json and Path(arguments.json).exists():
        records = {record["data"]: record for record in json.loads(Path(arguments.json).read_text())["records"]}
    for name in arguments.data:
        X = load(name)
        if X is None:
            print(f"{name}: left out, {FILES[name]} is not in DUFS_DATA or ../shared/data", flush=True)
            continue
        records[name] = measure(name, X, arguments.epochs, arguments.seeds)
        print(records[name], flush=True)
        peer_version = version("torch") if find_spec("torch") else "not installed"
        save(arguments.json, {"torch": peer_version, "records": list(records.values())})


if __name__ == "__main__":
    main()
