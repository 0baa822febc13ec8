#!/usr/bin/env python3
"""The study of memory: everything that `cargo bench --bench memory` measures, then each of its
equations that the peers are given too, ours and a peer in turn, each in a process of its own.

    python3 benches/study.py --python out/venv/bin/python
    cargo run --release --example study -- out/study.jsonl docs/memory

Writes JSON lines, those of ours and those of benches/peers/run_peers.py. A peer whose loss or
gradient disagrees by more than 1e-10 ends it with an error. What the file holds already is not
measured again; delete it to start anew.
"""
import argparse
import json
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
EQUATIONS = [*(f"chain-{k}" for k in range(1, 7)), "burgers", "ks", "ns", "laplace-2", "energy-5", "energy-20"]
PEERS = ["torch-rr", "torch-jvp", "jax-rr", "jax-jvp", "jax-jet", "jax-hand"]
SETS = ["order", "operators", "depth", "width", "points"]


def run(*command):
    done = subprocess.run([str(word) for word in command], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))} failed")
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def ours(*arguments):
    return run("cargo", "bench", "--quiet", "--bench", "memory", "--", "--json", *arguments)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--python", default=sys.executable, help="with numpy, jax and torch")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "out" / "study.jsonl")
    parser.add_argument("--threads", type=int, default=1)
    a = parser.parse_args()
    a.out.parent.mkdir(parents=True, exist_ok=True)
    lines = [json.loads(line) for line in a.out.read_text().splitlines()] if a.out.exists() else []

    def add(found):
        lines.extend(found)
        with a.out.open("a") as file:
            file.writelines(json.dumps(line) + "\n" for line in found)

    for name in SETS:
        if not any(line.get("set") == name for line in lines):
            print(f"ours: {name}", file=sys.stderr)
            add(ours("--set", name, "--threads", a.threads))
    for name in EQUATIONS:
        workload = f"{name}-64x4-n1024"
        for peer in PEERS:
            if any(line.get("workload") == workload and line.get("peer") == peer for line in lines):
                continue
            print(f"{peer}: {name}", file=sys.stderr)
            mine = ours("--set", "peers", "--equation", name, "--threads", a.threads, "--rounds", 5)
            theirs = run(a.python, "benches/peers/run_peers.py", "--workload", workload, "--peer", peer,
                         "--threads", a.threads)
            for line in theirs:
                for key in ("loss", "grad_norm"):
                    if abs(line[key] - mine[0][key]) > 1e-10 * abs(mine[0][key]):
                        sys.exit(f"{peer}, {workload}: {key} {line[key]}, ours {mine[0][key]}")
            add([dict(line, beside=peer) for line in mine] + theirs)


if __name__ == "__main__":
    main()
