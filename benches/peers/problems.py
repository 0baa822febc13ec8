"""The workloads as the peers see them: networks, points and residuals, number for number
those of benches/support/workloads.rs.

Random numbers come from splitmix64: state += 0x9E3779B97F4A7C15, then the state is mixed
(shift 30, multiply by 0xBF58476D1CE4E5B9, shift 27, multiply by 0x94D049BB133111EB, shift 31),
and the upper 53 bits are a number in [0, 1). Stream 1 makes the network: layer by layer, the
weights row by row, uniform within sqrt(6 / (inputs + outputs)), then the biases within 0.1.
Stream 2 makes the points, in the unit cube. Stream 3 makes the numbers in [-1, 1) that the
gradient is projected on.
"""
import math
from typing import NamedTuple

import numpy as np

VISCOSITY = {"burgers": 0.01 / math.pi, "ns": 0.01}


def uniform(stream, count):
    with np.errstate(over="ignore"):
        z = np.uint64(stream) + np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return ((z ^ (z >> np.uint64(31))) >> np.uint64(11)) / 2.0**53


class Problem(NamedTuple):
    equation: str
    inputs: int
    width: int
    hidden: int
    count: int

    @property
    def widths(self):
        return [self.inputs] + [self.width] * self.hidden + [3 if self.equation == "ns" else 1]

    @property
    def chains(self):
        """The highest derivative along each coordinate that has derivatives of its own."""
        if self.equation == "energy":
            return {axis: 1 for axis in range(self.inputs)}
        if self.equation.startswith("chain-"):
            return {0: self.order}
        return {"paper": {0: 1}, "ode": {0: 1}, "burgers": {0: 1, 1: 2}, "laplace": {},
                "ks": {0: 1, 1: 4}, "ns": {0: 1, 1: 1, 2: 1}}[self.equation]

    @property
    def order(self):
        """Of the derivative of a chain."""
        return int(self.equation.split("-")[1])

    @property
    def laplacian(self):
        """The coordinates of the Laplacian."""
        return {"laplace": tuple(range(self.inputs)), "ns": (1, 2)}.get(self.equation, ())

    def layers(self, dtype):
        shapes = [(n, m) for m, n in zip(self.widths, self.widths[1:])]
        numbers = 2.0 * uniform(1, sum(n * m + n for n, m in shapes)) - 1.0
        made, at = [], 0
        for n, m in shapes:
            weights = numbers[at:at + n * m].reshape(n, m) * math.sqrt(6.0 / (n + m))
            at += n * m
            made.append((weights.astype(dtype), (0.1 * numbers[at:at + n]).astype(dtype)))
            at += n
        return made

    def points(self, dtype):
        if self.equation == "paper":
            return np.array([[0.5]], dtype)
        return uniform(2, self.count * self.inputs).reshape(self.count, -1).astype(dtype)


PROBLEMS = {name: Problem(*rest) for name, *rest in [
    ("paper-3x2-n1", "paper", 1, 3, 2, 1),
    ("ode-3x2-n1", "ode", 1, 3, 2, 1),
    ("ode-3x2-n30", "ode", 1, 3, 2, 30),
    ("ode-32x2-n30", "ode", 1, 32, 2, 30),
    ("ode-32x2-n1000", "ode", 1, 32, 2, 1000),
    ("ode-32x2-n10000", "ode", 1, 32, 2, 10000),
    ("burgers-20x8-n1000", "burgers", 2, 20, 8, 1000),
    ("burgers-20x8-n10000", "burgers", 2, 20, 8, 10000),
    ("burgers-64x4-n10000", "burgers", 2, 64, 4, 10000),
    ("burgers-128x4-n10000", "burgers", 2, 128, 4, 10000),
    ("burgers-256x4-n4096", "burgers", 2, 256, 4, 4096),
    ("poisson2d-64x4-n10000", "laplace", 2, 64, 4, 10000),
    ("laplace10-128x4-n1000", "laplace", 10, 128, 4, 1000),
    ("laplace100-128x4-n256", "laplace", 100, 128, 4, 256),
    ("laplace100-128x4-n1000", "laplace", 100, 128, 4, 1000),
    ("ks-64x4-n4096", "ks", 2, 64, 4, 4096),
    ("ns-64x4-n4096", "ns", 3, 64, 4, 4096),
    # Those of the study of memory.
    *((f"chain-{k}-64x4-n1024", f"chain-{k}", 1, 64, 4, 1024) for k in range(1, 7)),
    ("burgers-64x4-n1024", "burgers", 2, 64, 4, 1024),
    ("ks-64x4-n1024", "ks", 2, 64, 4, 1024),
    ("ns-64x4-n1024", "ns", 3, 64, 4, 1024),
    ("laplace-2-64x4-n1024", "laplace", 2, 64, 4, 1024),
    ("energy-5-64x4-n1024", "energy", 5, 64, 4, 1024),
    ("energy-20-64x4-n1024", "energy", 20, 64, 4, 1024),
]}


def loss(problem, d):
    """Mean squares of the residuals from a table of derivatives, of any kind of array: d[()] is
    the value, d[1, 1] the second derivative in coordinate 1, d["laplacian"] the Laplacian; each
    has a row for every output and a column for every point."""
    u = d[()]
    if problem.equation in ("paper", "ode"):
        residuals = [d[0,] + u]
    elif problem.equation.startswith("chain-"):
        residuals = [d[(0,) * problem.order] + u]
    elif problem.equation == "energy":
        residuals = [sum(d[axis,] * d[axis,] for axis in range(problem.inputs))]
    elif problem.equation == "burgers":
        residuals = [d[0,] + u * d[1,] - VISCOSITY["burgers"] * d[1, 1]]
    elif problem.equation == "laplace":
        residuals = [d["laplacian"] + 1.0]
    elif problem.equation == "ks":
        residuals = [d[0,] + u * d[1,] + d[1, 1] + d[1, 1, 1, 1]]
    else:
        t, x, y, second = d[0,], d[1,], d[2,], d["laplacian"]
        residuals = [t[i] + u[0] * x[i] + u[1] * y[i] + pressure - VISCOSITY["ns"] * second[i]
                     for i, pressure in ((0, x[2]), (1, y[2]))]
        residuals.append(x[0] + y[1])
    return sum((r * r).mean() for r in residuals)


def start(u):
    """The paper's initial condition, from the value at 0."""
    return 10.0 * (u - 1.0) ** 2


def summary(gradient):
    gradient = np.asarray(gradient, dtype=np.float64)
    projection = gradient * (2.0 * uniform(3, gradient.size) - 1.0)
    return {"grad_norm": float(np.sqrt((gradient * gradient).sum())), "grad_dot": float(projection.sum())}
