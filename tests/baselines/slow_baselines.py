"""The baselines again, slowly: loops and dense matrices in float64, written from the papers."""

from __future__ import annotations

import numpy as np
from scipy.linalg import eigh, lstsq


def graph(X, k, t):
    """W_ij = exp(-||x_i - x_j||^2 / t) where i is among the k nearest of j or j of i; t a number or "median"."""
    n = len(X)
    D = np.array([[sum((a - b) ** 2 for a, b in zip(x, y, strict=True)) for y in X] for x in X])
    lists = [sorted((j for j in range(n) if j != i), key=lambda j, i=i: D[i, j])[:k] for i in range(n)]
    if t == "median":
        t = np.median([D[i, near[-1]] for i, near in enumerate(lists)])
    W = np.zeros((n, n))
    for i, near in enumerate(lists):
        for j in near:
            W[i, j] = W[j, i] = np.exp(-D[i, j] / t)
    return W, lists


def laplacian_scores(X, W):
    """LS of every column, smaller is better, from L and D as matrices."""
    D = np.diag(W.sum(axis=1))
    L, one = D - W, np.ones(len(X))
    scores = []
    for f in X.T:
        f = f - (f @ D @ one) / (one @ D @ one) * one
        scores.append((f @ L @ f) / (f @ D @ f))
    return np.array(scores)


def lars(X, y, steps):
    """Least angle regression, Efron, Hastie, Johnstone and Tibshirani 2004, equations 2.4 to 2.13."""
    d = X.shape[1]
    beta, fit, active = np.zeros(d), np.zeros(len(X)), []
    for step in range(steps):
        c = X.T @ (y - fit)
        C = max(abs(c[active])) if active else max(abs(c))
        if step == 0:
            active = [int(np.argmax(abs(c)))]
        signs = np.sign(c[active])
        Xa = X[:, active] * signs
        inverse = np.linalg.inv(Xa.T @ Xa)
        A = inverse.sum() ** -0.5
        w = A * inverse.sum(axis=1)
        a = X.T @ (Xa @ w)
        gamma, joining = C / A, None
        for j in set(range(d)) - set(active):
            for candidate in ((C - c[j]) / (A - a[j]), (C + c[j]) / (A + a[j])):
                if 1e-14 < candidate < gamma:
                    gamma, joining = candidate, j
        beta[active] += gamma * signs * w
        fit = fit + gamma * (Xa @ w)
        if joining is None:
            break
        active.append(joining)
    return beta


def mcfs(X, W, n_clusters, n_nonzero):
    """max_k |a_kj| from the generalised eigenproblem L y = lambda D y, y scaled to y'Dy = 1'D1."""
    D = np.diag(W.sum(axis=1))
    _, Y = eigh(D - W, D)
    Y = Y[:, 1 : n_clusters + 1] * np.sqrt(D.sum())
    return np.abs([lars(X, y - y.mean(), n_nonzero) for y in Y.T]).max(axis=0)


def ndfs(X, W, F, alpha, beta, gamma, iterations):
    """||b_j|| and the objective after each iteration, by d x d inverses; the paper's step or the safe one."""
    n, d = X.shape
    q = np.diag(W.sum(axis=1) ** -0.5)
    L = np.eye(n) - q @ W @ q
    inverse = np.linalg.inv(X.T @ X + beta * np.eye(d))
    B = inverse @ X.T @ F
    history = []
    for _ in range(iterations):
        Theta = np.diag(2 * np.linalg.norm(B, axis=1))
        inverse = np.linalg.inv(X.T @ X + beta * np.linalg.inv(Theta))
        M = L + alpha * (np.eye(n) - X @ inverse @ X.T)

        def value(F, M=M):
            return np.trace(F.T @ M @ F) + gamma / 2 * np.linalg.norm(F.T @ F - np.eye(F.shape[1])) ** 2

        ratio = (np.where(M < 0, -M, 0) @ F + gamma * F) / (np.where(M > 0, M, 0) @ F + gamma * F @ F.T @ F)
        step = F * ratio
        step = step / np.linalg.norm(step, axis=0)
        F = step if value(step) <= value(F) else F * ratio**0.25
        B = inverse @ X.T @ F
        history.append(
            np.trace(F.T @ L @ F)
            + alpha * (np.linalg.norm(F - X @ B) ** 2 + beta * np.linalg.norm(B, axis=1).sum())
            + gamma / 2 * np.linalg.norm(F.T @ F - np.eye(F.shape[1])) ** 2
        )
    return np.linalg.norm(B, axis=1), history


def local_regression(X, y, tau, beta):
    """w, b of min beta sum_j (x_j'w + b - y_j)^2 + sum_l w_l^2 / tau_l, as one least squares problem."""
    k, d = X.shape
    top = np.sqrt(beta) * np.column_stack([X, np.ones(k)])
    bottom = np.column_stack([np.diag(tau**-0.5), np.zeros(d)])
    solution = lstsq(np.vstack([top, bottom]), np.append(np.sqrt(beta) * y, np.zeros(d)))[0]
    return solution[:-1], solution[-1]


def llcfs(X, n_clusters, k, beta, iterations):
    """tau after a number of iterations, every local regression solved by itself."""
    n, d = X.shape
    tau = np.full(d, 1.0 / d)
    for _ in range(iterations):
        _, lists = graph(X * np.sqrt(tau), k, 1.0)
        A = np.zeros((n, n))
        for i, near in enumerate(lists):
            for place, j in enumerate(near):
                w, b = local_regression(X[near], np.eye(k)[place], tau, beta)
                A[i, j] = X[i] @ w + b
        E = np.eye(n) - A
        Y = eigh(E.T @ E)[1][:, :n_clusters]
        square = np.zeros(d)
        for near in lists:
            for y in Y.T:
                square += local_regression(X[near], y[near], tau, beta)[0] ** 2
        tau = np.sqrt(square) / np.sqrt(square).sum()
    return tau


def srcfs(X, partitions, k):
    """Mean over the partitions, each a list of lists of columns, of 1 - LS in each subspace."""
    scores = np.zeros((len(partitions), X.shape[1]))
    for p, subspaces in enumerate(partitions):
        for columns in subspaces:
            Z = X[:, columns]
            _, lists = graph(Z, k, 1.0)
            distances = [np.linalg.norm(Z[i] - Z[j]) for i, near in enumerate(lists) for j in near]
            sigma = np.mean(distances)
            W = graph(Z, k, 2 * sigma**2)[0]
            scores[p, columns] = 1 - laplacian_scores(Z, W)
    return scores.mean(axis=0)


def concrete_autoencoder(X, logits, decoder, noise, batches, temperatures, rate, slope=0.2):
    """Adam on the network, its gradient by the chain rule one row and one node at a time; all parameters at the end."""
    parameters = [logits.copy(), *(p.copy() for p in decoder)]
    first, second = [0 * p for p in parameters], [0 * p for p in parameters]
    losses = []
    for step, (g, rows, T) in enumerate(zip(noise, batches, temperatures, strict=True), start=1):
        logits, *decoder = parameters
        S = np.exp((logits + g) / T)
        S /= S.sum(axis=1, keepdims=True)
        gradients, loss = [0 * p for p in parameters], 0.0
        scale = len(rows) * X.shape[1]
        for x in X[rows]:
            inputs, outputs, h = [], [], S @ x
            for i in range(0, len(decoder), 2):
                inputs.append(h)
                outputs.append(h @ decoder[i] + decoder[i + 1])
                h = np.where(outputs[-1] > 0, outputs[-1], slope * outputs[-1])
            loss += ((outputs[-1] - x) ** 2).sum() / scale
            d = 2 * (outputs[-1] - x) / scale
            for i in reversed(range(0, len(decoder), 2)):
                gradients[1 + i] += np.outer(inputs[i // 2], d)
                gradients[2 + i] += d
                d = decoder[i] @ d
                if i:
                    d = d * np.where(outputs[i // 2 - 1] > 0, 1.0, slope)
            for node, s in enumerate(S):
                gradients[0][node] += d[node] * (np.diag(s) - np.outer(s, s)) @ x / T
        losses.append(loss)
        for i, gradient in enumerate(gradients):
            first[i] = 0.9 * first[i] + 0.1 * gradient
            second[i] = 0.999 * second[i] + 0.001 * gradient**2
            mean, size = first[i] / (1 - 0.9**step), second[i] / (1 - 0.999**step)
            parameters[i] = parameters[i] - rate * mean / (np.sqrt(size) + 1e-8)
    return parameters, losses
