"""PyTorch, as it comes: the derivatives of the network in two ways, and the gradient by
reverse mode.

torch-rr   reverse on reverse: a graph of the graph for every derivative (create_graph)
torch-jvp  torch.func.jvp of torch.func.jvp, along one coordinate at a time
"""
import time

import numpy as np
import torch
from torch.func import jvp, vmap

from problems import Problem, loss, start

METHODS = ("rr", "jvp")


def network(layers, x):
    for w, b in layers[:-1]:
        x = torch.tanh(torch.nn.functional.linear(x, w, b))
    return torch.nn.functional.linear(x, *layers[-1])


def slope(u, x):
    """The derivative of each number in its own point."""
    return torch.autograd.grad(u.sum(), x, create_graph=True)[0]


def by_reverse(problem, layers, x):
    x = x.clone().requires_grad_()
    found = {}
    outputs = network(layers, x).T
    for u in outputs:
        first = slope(u, x)
        d = {(axis,): first[:, axis] for axis in problem.chains}
        for axis, order in problem.chains.items():
            for k in range(2, order + 1):
                d[(axis,) * k] = slope(d[(axis,) * (k - 1)], x)[:, axis]
        if problem.laplacian:
            d["laplacian"] = sum(slope(first[:, a], x)[:, a] for a in problem.laplacian)
        for name, value in d.items():
            found.setdefault(name, []).append(value)
    return {(): outputs, **{name: torch.stack(values) for name, values in found.items()}}


def along(f, x, e, order):
    if order == 0:
        return (f(x),)
    known, slopes = jvp(lambda y: along(f, y, e, order - 1), (x,), (e,))
    return (*known, slopes[-1])


def by_jvp(problem, layers, x):
    def f(y):
        return network(layers, y)

    directions = torch.eye(problem.inputs, dtype=x.dtype)
    d = {}
    if problem.laplacian and problem.inputs > 3:
        second = vmap(lambda e: along(f, x, e.expand_as(x), 2)[2])
        return {(): None, "laplacian": second(directions).sum(0).T}
    for axis in sorted({*problem.chains, *problem.laplacian}):
        order = max(problem.chains.get(axis, 0), 2 if axis in problem.laplacian else 0)
        found = along(f, x, directions[axis].expand_as(x), order)
        d.update({(axis,) * k: v.T for k, v in enumerate(found)})
    if problem.laplacian:
        d["laplacian"] = sum(d[axis, axis] for axis in problem.laplacian)
    return d


class Peer:
    def __init__(self, name, problem: Problem, dtype, threads):
        torch.set_num_threads(threads)
        self.problem = problem
        self.derivatives = {"rr": by_reverse, "jvp": by_jvp}[name.split("-")[1]]
        self.layers = [tuple(torch.from_numpy(part.copy()).requires_grad_() for part in layer)
                       for layer in problem.layers(dtype)]
        self.x = torch.from_numpy(problem.points(dtype))

    @staticmethod
    def supports(name, problem):
        return name in [f"torch-{method}" for method in METHODS]

    def prepare(self):
        begun = time.perf_counter()
        self.step()
        return time.perf_counter() - begun

    def step(self):
        total = loss(self.problem, self.derivatives(self.problem, self.layers, self.x))
        if self.problem.equation == "paper":
            total = total + start(network(self.layers, torch.zeros(1, 1, dtype=self.x.dtype))[0, 0])
        flat = [part for layer in self.layers for part in layer]
        self.found = total.detach(), torch.autograd.grad(total, flat, materialize_grads=True)

    def result(self):
        total, gradient = self.found
        return float(total), np.concatenate([g.numpy().ravel() for g in gradient])

    def more(self):
        return {}
