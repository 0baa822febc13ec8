#!/usr/bin/env python3
"""dualtape and its peers side by side: for each workload ours, a peer, ours, the next peer,
and so on, each in a process of its own. Checks that loss and gradient agree, and writes the
medians and ratios as a Markdown table and as JSON. README.md, beside this file, says what
the columns mean. Needs nothing but Python and cargo; the peers need what they need.

    python3 benches/compare.py --python EXE --workload burgers-64x4-n10000 --threads 2
"""
from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shlex
import statistics
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent

WORKLOADS = """paper-3x2-n1 ode-3x2-n1 ode-3x2-n30 ode-32x2-n1000 burgers-20x8-n10000 burgers-64x4-n10000
burgers-128x4-n10000 burgers-256x4-n4096 poisson2d-64x4-n10000 laplace10-128x4-n1000
laplace100-128x4-n1000 ks-64x4-n4096 ns-64x4-n4096""".split()
PEERS = """jax-hand jax-hand-chunked jax-hand-sharded jax-jvp jax-jet jax-rr jax-folx
torch-rr torch-jvp torch-jet torch-rr-compiled torch-hand-compiled torch-hand-compiled-chunked
deepxde""".split()

# Groups of rivals, by name. A network trained without physics (`plain`) or more than an
# evaluation (`step`) is none.
RIVALS = {
    "any kind": r"(?!.*(plain|step)).*",
    "idiomatic JAX": r"jax-(rr|jvp|jet|folx)",
    "eager PyTorch, DeepXDE": r"torch-(rr|jvp|jet)|deepxde",
}
WHOLE = r"(?!.*(plain|step|chunked|sharded)).*"

# Largest relative disagreement of loss, gradient norm and projection. f32 is 1e-7 times the
# root of the operations in a sum, for peers that add up all points in f32.
TOLERANCE = {"f64": 1e-10, "f32": 1e-5}
# Growth of the resident memory is known by pages and by what the allocator had left.
LEAST_MEMORY = 1 << 20


def bench_executable() -> str:
    command = ["cargo", "bench", "--bench", "peers", "--no-run", "--message-format=json"]
    built = subprocess.run(command, cwd=HERE.parent, stdout=subprocess.PIPE, text=True, check=True)
    for line in built.stdout.splitlines():
        message = json.loads(line)
        if message.get("executable") and message["target"]["name"] == "peers":
            return message["executable"]
    sys.exit("cargo named no executable for the bench `peers`")


def lines_of(command, timeout, **options):
    """The JSON lines that a command prints, or one line with what went wrong."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, **options)
    except subprocess.TimeoutExpired:
        return [{"error": f"no result in {timeout:.0f} s"}]
    found = [json.loads(x) for x in done.stdout.splitlines() if x.startswith("{")]
    if done.returncode != 0 and not found:
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        return [{"error": f"exit status {done.returncode}: {last[:200]}"}]
    return found


class Runner:
    def __init__(self, arguments):
        self.a = arguments
        self.executable = bench_executable()

    def ours(self, workload, dtype, threads):
        command = [self.executable, "--bench", "--json", "--workload", workload, "--dtype", dtype,
                   "--threads", str(threads), "--seconds", str(self.a.seconds)]
        options = {}
        if threads == 1 and hasattr(os, "sched_setaffinity"):
            # One CPU for one thread, as the peers have it.
            last = max(os.sched_getaffinity(0))
            options["preexec_fn"] = lambda: os.sched_setaffinity(0, {last})
        found = lines_of(command, self.a.timeout, **options)
        if len(found) != 1 or "error" in found[0]:
            sys.exit(f"ours failed: {shlex.join(command)}: {found}")
        return found[0]

    def peer(self, peer, workload, dtype, threads):
        """None where a peer does not support a workload."""
        command = [self.a.python, "run_peers.py", "--workload", workload, "--peer", peer,
                   "--dtype", dtype, "--threads", str(threads), *shlex.split(self.a.peer_args)]
        found = lines_of(command, self.a.timeout, cwd=self.a.peers)
        return found[0] if found else None

    def combination(self, workload, dtype, threads):
        """Laps of ours, and measurements of peers, each between two laps."""
        laps, measured = [self.ours(workload, dtype, threads)], []
        for _ in range(self.a.rounds):
            for peer in self.a.peer:
                found = self.peer(peer, workload, dtype, threads)
                if found is None:
                    continue
                found["peer"] = peer
                laps.append(self.ours(workload, dtype, threads))
                measured.append({"between": len(laps) - 2, **found})
                print(f"  {peer}: {brief(found, laps)}", file=sys.stderr, flush=True)
        return {"workload": workload, "dtype": dtype, "threads": threads,
                "laps": laps, "measured": measured}


def brief(found, laps):
    if "error" in found:
        return found["error"]
    return f"{ms(found['t_median_s'])} ms; ours {ms(laps[-2]['t_median_s'])}, {ms(laps[-1]['t_median_s'])}"


def disagreement(ours, theirs):
    norm = abs(ours["grad_norm"])
    return max(abs(theirs["loss"] - ours["loss"]) / abs(ours["loss"]),
               abs(theirs["grad_norm"] - ours["grad_norm"]) / norm,
               abs(theirs["grad_dot"] - ours["grad_dot"]) / norm)


def memory(line):
    """Bytes at the peak of an evaluation: measured, or as the compiler accounts for them."""
    return max(line.get("peak_eval_bytes") or 0, line.get("xla_temp_bytes") or 0)


def judge(raw):
    """Medians and ratios of one combination."""
    laps, median = raw["laps"], statistics.median
    times = [lap["t_median_s"] for lap in laps]
    ours = {
        "t_median_s": median(times),
        "spread": max(times) / min(times) - 1,
        "first_call_s": median(lap["first_call_s"] for lap in laps),
        "memory_bytes": median(lap["peak_eval_bytes"] for lap in laps),
        "gflops": median(lap["gflops"] for lap in laps),
        "peak_gflops": max(lap["peak_gflops"] for lap in laps),
    }
    ours["peak_fraction"] = ours["gflops"] / ours["peak_gflops"]
    peers = []
    for name in dict.fromkeys(m["peer"] for m in raw["measured"]):
        group = [m for m in raw["measured"] if m["peer"] == name]
        good = [m for m in group if "error" not in m]
        if not good:
            peers.append({"peer": name, "error": group[0]["error"]})
            continue
        ratio = [m["t_median_s"] / ((times[m["between"]] + times[m["between"] + 1]) / 2) for m in good]
        held = median(memory(m) for m in good)
        worst = max(disagreement(laps[0], m) for m in good)
        plain = "plain" in name
        peers.append({
            "peer": name,
            "t_median_s": median(m["t_median_s"] for m in good),
            "time_ratio": median(ratio),
            "memory_bytes": held,
            "memory_ratio": held / ours["memory_bytes"] if held >= LEAST_MEMORY else None,
            "first_call_s": median(m["first_call_s"] for m in good),
            "others_cpu": max(m.get("others_cpu") or 0 for m in good),
            "disagreement": None if plain else worst,
            "agrees": plain or worst <= TOLERANCE[raw["dtype"]],
        })
    whole = [p for p in peers if "error" not in p and re.fullmatch(WHOLE, p["peer"])]
    rivals = {}
    for group, pattern in RIVALS.items():
        candidates = [p for p in peers if "error" not in p and re.fullmatch(pattern, p["peer"])]
        best = min(candidates, key=lambda p: p["time_ratio"], default=None)
        rivals[group] = best and {k: best[k] for k in ("peer", "t_median_s", "time_ratio", "first_call_s")}
    lean = min((p for p in whole if p["memory_ratio"]), key=lambda p: p["memory_ratio"], default=None)
    return {"workload": raw["workload"], "dtype": raw["dtype"], "threads": raw["threads"],
            "ours": ours, "rivals": rivals, "peers": peers,
            "leanest": lean and {k: lean[k] for k in ("peer", "memory_bytes", "memory_ratio")}}


def ms(seconds):
    return "-" if seconds is None else f"{seconds * 1e3:.4g}"


def mib(count):
    return "-" if count is None else "< 1" if count < LEAST_MEMORY else f"{count / 2**20:.0f}"


def times(ratio):
    return "-" if ratio is None else f"{ratio:.2f}x" if ratio < 100 else f"{ratio:.0f}x"


def row(cells):
    return "| " + " | ".join(cells) + " |"


def markdown(results, notes):
    out = ["# dualtape and its peers", ""]
    out += [f"- {key}: {value}" for key, value in notes.items()]
    head = ["workload", "dtype", "threads", "ours, ms", "spread", "GFLOP/s", "of peak",
            "first result, ms", "memory, MiB"]
    head += [f"fastest: {group}" for group in RIVALS]
    head += ["its compile time, s", "leanest unchunked, memory"]
    out += ["", "## Ratios", "", row(head), row(["---"] * len(head))]
    for r in results:
        o = r["ours"]
        cells = [r["workload"], r["dtype"], str(r["threads"]), ms(o["t_median_s"]),
                 f"{100 * o['spread']:.0f} %", f"{o['gflops']:.3g}",
                 f"{100 * o['peak_fraction']:.0f} % of {o['peak_gflops']:.0f}",
                 f"{o['first_call_s'] * 1e3:.2g}", f"{o['memory_bytes'] / 2**20:.2g}"]
        for group in RIVALS:
            best = r["rivals"][group]
            cells.append(f"**{times(best['time_ratio'])}** {best['peer']}" if best else "-")
        best, lean = r["rivals"]["any kind"], r["leanest"]
        cells.append(f"{best['first_call_s']:.2g}" if best else "-")
        cells.append(f"**{times(lean['memory_ratio'])}** {lean['peer']}" if lean else "-")
        out.append(row(cells))
    head = ["workload", "dtype", "threads", "peer", "median, ms", "time, ratio", "memory, MiB",
            "memory, ratio", "compile time, s", "disagreement", "others' CPU"]
    out += ["", "## Every peer", "", row(head), row(["---"] * len(head))]
    for r in results:
        place = [r["workload"], r["dtype"], str(r["threads"])]
        o = r["ours"]
        out.append(row(place + ["**dualtape**", ms(o["t_median_s"]), "1", f"{o['memory_bytes'] / 2**20:.2g}",
                                "1", f"{o['first_call_s']:.2g}", "-", "-"]))
        good = [p for p in r["peers"] if "error" not in p]
        for p in sorted(good, key=lambda p: p["time_ratio"]):
            d = p["disagreement"]
            d = "-" if d is None else f"{d:.0e}" if p["agrees"] else f"**{d:.0e}: DIFFERS**"
            out.append(row(place + [p["peer"], ms(p["t_median_s"]), times(p["time_ratio"]),
                                    mib(p["memory_bytes"]), times(p["memory_ratio"]),
                                    f"{p['first_call_s']:.2g}", d, f"{100 * p['others_cpu']:.0f} %"]))
        for p in r["peers"]:
            if "error" in p:
                error = p["error"].replace("|", "/")
                out.append(row(place + [p["peer"], f"failed: {error}"] + ["-"] * 6))
    return "\n".join(out) + "\n"


def processor():
    try:
        text = Path("/proc/cpuinfo").read_text()
        found = re.search(r"model name\s*:\s*(.*)", text)
        return found.group(1) if found else platform.machine()
    except OSError:
        return platform.machine()


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    listed = lambda text: text.split(",")  # noqa: E731
    parser.add_argument("--peers", default=HERE / "peers", type=Path, metavar="DIR",
                        help="where run_peers.py is (default: benches/peers)")
    parser.add_argument("--python", default=sys.executable, metavar="EXE",
                        help="the Python that has the peers' packages")
    parser.add_argument("--peer-args", default="", metavar="WORDS", help="more options for run_peers.py")
    parser.add_argument("--workload", type=listed, default=WORKLOADS, metavar="NAMES")
    parser.add_argument("--peer", type=listed, default=PEERS, metavar="NAMES")
    parser.add_argument("--dtype", type=listed, default=["f64"], metavar="f64,f32")
    parser.add_argument("--threads", type=lambda t: [int(x) for x in t.split(",")], default=[2, 1],
                        metavar="NUMBERS")
    parser.add_argument("--rounds", type=int, default=1, help="times through all peers (default: 1)")
    parser.add_argument("--seconds", type=float, default=0.8, help="of timed repeats in a lap of ours")
    parser.add_argument("--timeout", type=float, default=600.0, help="seconds for one process")
    parser.add_argument("--out", default="out/comparison", metavar="PREFIX",
                        help="writes PREFIX.md, PREFIX.json and the lines as they come in PREFIX.jsonl;\n"
                             "combinations that the last already holds are not measured again")
    return parser.parse_args()


def main():
    a = arguments()
    lines = Path(a.out + ".jsonl")
    lines.parent.mkdir(parents=True, exist_ok=True)
    raw = [json.loads(x) for x in lines.read_text().splitlines()] if lines.exists() else []
    done = {(r["workload"], r["dtype"], r["threads"]) for r in raw}
    wanted = [(w, d, t) for w in a.workload for d in a.dtype for t in a.threads]
    runner = Runner(a)
    for workload, dtype, threads in wanted:
        if (workload, dtype, threads) in done:
            continue
        print(f"{workload} {dtype} {threads} thread(s)", file=sys.stderr, flush=True)
        found = runner.combination(workload, dtype, threads)
        raw.append(found)
        with lines.open("a") as file:
            file.write(json.dumps(found) + "\n")
    results = [judge(r) for r in raw]
    rustc = subprocess.run(["rustc", "--version"], capture_output=True, text=True).stdout.strip()
    notes = {"processor": f"{processor()}, {os.cpu_count()} CPUs", "compiler": rustc,
             "command": shlex.join(["benches/compare.py", *sys.argv[1:]])}
    Path(a.out + ".json").write_text(json.dumps({"notes": notes, "results": results}, indent=1) + "\n")
    text = markdown(results, notes)
    Path(a.out + ".md").write_text(text)
    print(text)
    differing = [(r["workload"], p["peer"]) for r in results for p in r["peers"]
                 if "error" not in p and not p["agrees"]]
    if differing:
        sys.exit(f"loss or gradient differ: {differing}")


if __name__ == "__main__":
    main()
