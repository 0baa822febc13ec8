#!/usr/bin/env python3
"""Measures one peer on one workload and prints one JSON line; prints nothing where the peer
does not support the workload. benches/README.md says what the fields mean.

    python run_peers.py --workload burgers-64x4-n10000 --peer jax-hand --dtype f64 --threads 2

Needs numpy, and jax or torch for the peers of their names.
"""
import argparse
import ctypes
import gc
import json
import os
import sys
import time


def resident(key):
    """A size of this process as Linux keeps it, in bytes."""
    with open("/proc/self/status") as file:
        line = next(line for line in file if line.startswith(key))
    return 1024 * int(line.split()[1])


def growth(step):
    """How much the resident memory grows at most during a step; None where that is unknown."""
    try:
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")
        before = resident("VmRSS")
        step()
        return resident("VmHWM") - before
    except (OSError, AttributeError):
        return None


def keep_memory():
    """Tells glibc to keep what is freed, as other allocators do: else each large array is
    mapped anew at every step."""
    trim_threshold, top_pad, mmap_max = -1, -2, -4
    try:
        libc = ctypes.CDLL(None)
        for parameter, value in ((trim_threshold, -1), (top_pad, 1 << 26), (mmap_max, 0)):
            libc.mallopt(parameter, ctypes.c_int(value))
    except (OSError, AttributeError):
        pass


def busy():
    """Seconds of CPU that the whole machine has used."""
    try:
        with open("/proc/stat") as file:
            fields = [int(x) for x in file.readline().split()[1:]]
        return (sum(fields[:3]) + sum(fields[5:8])) / os.sysconf("SC_CLK_TCK")
    except OSError:
        return 0.0


def timed(step, seconds):
    for _ in range(2):
        step()
    machine, own, begun = busy(), sum(os.times()[:2]), time.perf_counter()
    laps = []
    while len(laps) < 5 or time.perf_counter() - begun < seconds:
        lap = time.perf_counter()
        step()
        laps.append(time.perf_counter() - lap)
    wall = (time.perf_counter() - begun) * os.cpu_count()
    others = (busy() - machine) - (sum(os.times()[:2]) - own)
    laps.sort()
    return {"t_median_s": laps[len(laps) // 2], "t_min_s": laps[0], "reps": len(laps),
            "others_cpu": round(max(0.0, others / wall), 4)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--workload", required=True)
    parser.add_argument("--peer", required=True)
    parser.add_argument("--dtype", choices=["f64", "f32"], default="f64")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=0.8, help="of timed repeats")
    parser.add_argument("--check", action="store_true", help="loss and gradient only")
    a = parser.parse_args()

    # Before any library counts the CPUs: as many as there are to be threads.
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-a.threads:])
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[name] = str(a.threads)
    os.environ["JAX_PLATFORMS"] = "cpu"
    os.environ["JAX_ENABLE_X64"] = "1" if a.dtype == "f64" else "0"
    from problems import PROBLEMS, summary

    problem = PROBLEMS.get(a.workload)
    if a.peer.startswith("jax-"):
        from in_jax import Peer
    elif a.peer.startswith("torch-"):
        from in_torch import Peer
    else:
        return
    if problem is None or not Peer.supports(a.peer, problem):
        return
    peer = Peer(a.peer, problem, {"f64": "float64", "f32": "float32"}[a.dtype], a.threads)
    first = peer.prepare()
    memory = growth(peer.step)
    total, gradient = peer.result()
    line = {"kind": "peer", "workload": a.workload, "peer": a.peer, "dtype": a.dtype,
            "threads": a.threads, "n": problem.count, "loss": total, **summary(gradient),
            "first_call_s": first, "peak_eval_bytes": memory, **peer.more()}
    if not a.check:
        keep_memory()
        line.update(timed(peer.step, a.seconds))
    print(json.dumps(line))


if __name__ == "__main__":
    sys.exit(main())
