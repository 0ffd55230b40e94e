"""The rows of the measured table that are about training, evaluation and preparing data."""

import re
from collections.abc import Callable

from benchmarks.harness.machine import results
from benchmarks.readme.figures import Result, Rows, several


def samplers(result: Result) -> Rows:
    learned, drawn = result["learned_unigram_ms"], f"{result['sizes']['negatives']:,} draws"
    command = f"training.samplers --calls {result['sizes']['calls']}"
    rows = [
        (
            f"Learned unigram, {drawn} and counting, among 10k / 10M items",
            f"{learned['ours, N = 10000']:.2f} / {learned['ours, N = 10000000']:.2f} ms; TensorFlow's op "
            f"{learned['TensorFlow, N = 10000']:.2f} / {learned['TensorFlow, N = 10000000']:.2f} ms",
            command,
        )
    ]
    for size, name in (("N = 1000000", "1M"), ("N = 10000000", "10M")):
        ms = result["log_uniform_ms"][size]
        rows.append(
            (
                f"Log-uniform, {drawn} among {name} items: with replacement / distinct / distinct by XLA",
                f"{ms['ours']:.2f} / {ms['ours, distinct']:.2f} / {ms['ours, distinct, compiled']:.2f} ms; "
                f"TensorFlow's op {ms['TensorFlow']:.2f} / {ms['TensorFlow, distinct']:.2f} ms",
                command,
            )
        )
    return rows


def optimizers(result: Result) -> Rows:
    growth, sizes = result["growth"], result["sizes"]

    def grown(batch: str) -> str:
        ratio = growth[f"ratio{batch}"][-1]
        return f"{several(growth[f'median_ms{batch}'], '.1f')} ms, the last {ratio:.2f} times the first"

    rows = [
        (
            "A train step of ids alone, in-batch softmax without logQ correction, accidental hits kept, batch "
            f"{sizes['large_batch']:,}, Adam, among {several(growth['items'], ',')} items",
            f"{grown('')}; {result['switches']['step_to_bare_products']:.1f} times its bare matrix products",
            "training.optimizers",
        ),
        (f"… batch {sizes['batch']:,}", grown(f", batch {sizes['batch']:,}"), "training.optimizers"),
    ]
    effect = ", ".join(f"{name} {ratio:.2f}" for name, ratio in result["switches"]["ratio_to_step"].items())
    switched = f"… with switches of `[train]`, batch {sizes['large_batch']:,}: time as a share of that without"
    rows.append((switched, effect, "training.optimizers"))
    for batch, runs in result["against_peer"].items():
        told = ", ".join(f"{run['optimizer']} at {run['items']:,} items {run['ratio']:.2f}" for run in runs)
        what = f"… how many times as fast as TFRS's retrieval task with Keras's optimizer, batch {int(batch):,}"
        rows.append((what, told, "training.optimizers"))
    return rows


def evaluation(result: Result) -> Rows:
    worlds = result["worlds"].values()
    seconds = several([world["seconds"]["top_k"] for world in worlds], ".2f")
    product = several([world["times_bare_product"]["top_k"] for world in worlds], ".2f")
    service = several([world["times_bare_product"]["ExactIndex"] for world in worlds], ".2f")
    products = [min(s for name, s in each["seconds"].items() if name.startswith("product")) for each in worlds]
    same = several([each["seconds"]["ExactIndex"] / s for each, s in zip(worlds, products, strict=True)], ".2f")
    faster = several([world["times_faster_than_query_with_exclusions"] for world in worlds], ".1f")
    return [
        (
            f"Exact top {result['sizes']['k']} of {result['sizes']['users']:,} users, seen items masked, on vectors "
            f"{' / '.join(result['worlds'])}",
            f"{seconds} s; {product} times the bare matrix product (`ExactIndex` of the service {same}, and {service} "
            f"times NumPy's own, slower product, by which its goal is judged), {faster} times as fast as TFRS's layers "
            "asked for the same lists",
            "training.full_evaluation",
        )
    ]


def report(result: Result) -> Rows:
    sizes, whole = result["sizes"], result["with_all_baselines"]
    return [
        (
            f"`towers report`, {sizes['users']:,} users x {sizes['items']:,} items, lists of {sizes['k']}: processor "
            "time, popularity its only baseline / all, cached; peak memory",
            f"{result['processor_seconds']['report']:.0f} s, {result['times_exact']:.2f} times the exact top-k alone / "
            f"{whole['processor_seconds']:.0f} s; {whole['peak_bytes'] / 1e9:.1f} GB",
            "evaluation.report_time --bundle BUNDLE --dataset DATASET",
        )
    ]


def report_million(result: Result) -> Rows:
    sizes, reports = result["sizes"], result["reports"]
    users = reports["first"]["users"]
    return [
        (
            f"`towers report --users {users}` of {sizes['users'] / 1e6:g} million users with {sizes['events'] / 1e6:g} "
            f"million events, {sizes['items']:,} items: the first of a data set / the next; peak memory",
            f"{several([each['seconds'] for each in reports.values()], '.0f')} s; "
            f"{reports['first']['peak_bytes'] / 1e9:.1f} GB",
            "evaluation.report_million",
        )
    ]


def train_step(result: Result) -> Rows:
    ratio, sizes = result["ratio_to_in_batch"], result["sizes"]
    return [
        (
            f"A train step of ids alone with {sizes['negatives']:,} sampled negatives among {sizes['items']:,} items, "
            "logQ correction, accidental hits kept, beside the in-batch step with as many candidates",
            ", ".join(f"{name} {value:.2f}x" for name, value in ratio.items())
            + f"; the in-batch step {result['median_ms']['in_batch']:.1f} ms",
            "training.train_step",
        )
    ]


def full_softmax(result: Result) -> Rows:
    run = result["items"]["1000000"]
    return [
        (
            "Full softmax over 1,000,000 items, batch 1,024: a step, and memory beside tables, gradients and moments",
            f"{run['step_s']:.1f} s, {run['beside_bytes'] / 1e6:.0f} MB",
            "training.full_softmax",
        )
    ]


def prepare(result: Result) -> Rows:
    formats = result["formats"]
    figures = ", ".join(
        f"{name} {f['seconds']:.0f} s and {f['peak_bytes'] / 1e9:.1f} GB" for name, f in formats.items()
    )
    millions = f"{result['sizes']['events'] / 1e6:g}"
    what = f"`towers prepare` of {millions} million events: time and peak memory"
    return [(what, figures, f"scale.prepare_{millions}m")]


def input_pipeline(result: Result) -> Rows:
    runs = result["events"].values()
    times = several([run["times_training"] for run in runs], ".0f")
    memory = several([run["peak_anonymous_bytes"] / 1e6 for run in runs], ".0f")
    events = " / ".join(f"{int(events) / 1e6:g}" for events in result["events"])
    return [
        (
            f"Batches with features and histories, from files of {events} million events: times as fast as training "
            "uses them; peak memory that no file backs",
            f"{times}; {memory} MB",
            "training.input_pipeline",
        )
    ]


def warm_start(result: Result) -> Rows:
    share, rows = f"{result['default']:g}", []
    for name, what in (("ml-100k", "MovieLens-100k at four cut-offs"), ("days", "four days of a synthetic world")):
        cold, warm = result["figures"][name]["cold"], result["figures"][name][share]
        rows.append(
            (
                f"`--warm-from` with `warm_share` {share}, {what}: {result['metrics'][name]} on validation in the best "
                "epoch; epochs until the best of a cold run",
                f"{warm['best']:.3f} (cold {cold['best']:.3f}); {warm['epochs']} (cold {cold['epochs']})",
                "training.warm_start",
            )
        )
    return rows


def compiled(result: Result) -> Rows:
    cells, ratios = result["cells"].values(), dict[str, dict[str, str]]()
    for name, time in result["times"].items():
        step, _, batch = name.rpartition(", ")
        ratios.setdefault(step, {})[f"{int(batch):,}"] = f"{time['ratio']:.1f}" if "ratio" in time else "failed"
    return [
        (
            f"The compiled train step by JAX on device {result['device']['name']}, {len(cells)} losses and samplers: "
            "largest distance from TensorFlow's losses / gradients / state",
            several([max(cell[key] for cell in cells) for key in ("losses", "gradients", "state")], ".0e"),
            "gpu.run FILE",
        ),
        (
            f"… batches of {' / '.join(next(iter(ratios.values())))}: a step as a multiple of its bare matrix products",
            "; ".join(f"{step} {' / '.join(each.values())}" for step, each in ratios.items()),
            "gpu.run FILE",
        ),
    ]


def train_loop(result: Result) -> Rows:
    far = [max(cell[key] for cell in result["cells"].values()) for key in ("step", "jit_compile")]
    command = "gpu.loop --batches 1024 4096 16384 32768 --rounds 5 --events 8000000"
    rows = [
        (
            f"The train step by TensorFlow on device {result['device']['name']}, {len(result['cells'])} losses and "
            "samplers: largest distance from the CPU's losses, without / with `train.jit_compile`",
            several(far, ".0e"),
            command,
        )
    ]
    recipes: dict[str, dict[str, Result]] = {}
    for name, rate in result["rates"].items():
        recipe, batch, jit = re.split(r", batches of ([\d,]*\d)", name)
        if "loop_to_bare" in rate:
            recipes.setdefault(recipe + jit, {})[batch] = rate
    for recipe, rates in recipes.items():
        rounds = several([each["rounds"] for each in rates.values()], "d")
        rows.append(
            (
                f"… {recipe}, batches of {' / '.join(rates)}, {rounds} rounds, as many as fit: "
                "steps/s of the whole loop, as a share of the bare step",
                f"{several([each['loop_steps_per_s'] for each in rates.values()], ',.0f')}; "
                f"{several([each['loop_to_bare'] for each in rates.values()], '.2f')}; what may flatter small ones: "
                "[training.md](../model/training.md#on-a-gpu)",
                command,
            )
        )
    return rows


ROWS: dict[str, Callable[[Result], Rows]] = {
    "samplers": samplers,
    "optimizers": optimizers,
    "evaluation": evaluation,
    "report": report,
    "report_million": report_million,
    "train_step": train_step,
    "full_softmax": full_softmax,
    "prepare": prepare,
    "prepare_100m": prepare,
    "input": input_pipeline,
    "warm_start": warm_start,
}
ROWS |= {name: compiled for name in results() if name.startswith("jax_")}
ROWS |= {name: train_loop for name in results() if name.startswith("loop_")}
