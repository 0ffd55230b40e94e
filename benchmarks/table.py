"""The table of measured figures, out of the committed results: what the README shows, and a test holds it to.

`python -m benchmarks.table` writes it into the README.
"""

import json
from pathlib import Path
from typing import Any

from benchmarks import table_serving
from benchmarks.machine import RESULTS, ROOT

BEGIN, END = "<!-- measured: python -m benchmarks.table -->", "<!-- /measured -->"
README = ROOT / "README.md"
DEMO_BASELINES = {
    "item_knn": "item-kNN",
    "popularity": "popularity",
    "popularity_recent": "recent popularity",
    "ease": "EASE",
}
TIMED_RANKERS = ("model", "strongest baseline")
TIMED_SETS = {
    "ml-100k": "MovieLens-100k, five cut-offs in time",
    "world": "Two synthetic worlds with fashion",
}


def table() -> str:
    """The rows: what was measured, the figure, the command that measures it again."""
    rows = [*_demo(_result("demo")), *_quality(_result("quality_gowalla"), "Gowalla, ids and their order", "gowalla")]
    rows += _quality(_result("quality_ml_1m_split"), "MovieLens-1M, ids only", "ml-1m-split")
    rows += [*_beauty(_result("beauty")), *_ml_100k(_result("ml_100k"))]
    rows += _ml_100k_rolling(_result("ml_100k_rolling"))
    if (RESULTS / "timed.json").exists():
        rows += timed_rows(_result("timed"))
    rows += _tune(_result("tune"))
    rows += _similarity(_result("similarity"))
    rows += _filters(_result("filters"))
    for name, its_rows in table_serving.ROWS.items():
        if (RESULTS / f"{name}.json").exists():
            rows += its_rows(_result(name))
    rows += _samplers(_result("samplers"))
    rows += _optimizers(_result("optimizers"))
    rows += _evaluation(_result("evaluation"))
    rows += _train_step(_result("train_step"))
    rows += _full_softmax(_result("full_softmax"))
    rows += _prepare(_result("prepare"))
    rows += _input(_result("input"))
    lines = ["| measured | result | command |", "|---|---|---|"]
    lines += [f"| {what} | {figure} | `python -m benchmarks.{command}` |" for what, figure, command in rows]
    machine = _result("quality_gowalla")["machine"]
    where = f"On {machine['cores']} cores of an {machine['cpu']}, {machine['memory_gib']:.0f} GiB"
    note = f"{where}; raw results in `benchmarks/results/`. In brackets: 95 % bootstrap intervals over users."
    return "\n".join([*lines, "", note])


def readme_with_table(text: str) -> str:
    """The README's text with the table between its marks."""
    before, rest = text.split(BEGIN)
    return f"{before}{BEGIN}\n{table()}\n{END}{rest.split(END)[1]}"


def _demo(result: dict[str, Any]) -> list[tuple[str, str, str]]:
    metrics, share = result["metrics"], result["share_of_attainable"]
    names = ("recall@10", "recall@50", "recall@100")

    def three(ranker: str) -> str:
        return " / ".join(f"{metrics[ranker][name]['value']:.3f}" for name in names)

    attained = " / ".join(f"{share[name]['value']:.0%}" for name in names)
    baselines = ", ".join(f"{told} {three(ranker)}" for ranker, told in DEMO_BASELINES.items() if ranker in metrics)
    return [
        (
            "`towers demo`, first run / repeated",
            f"{result['seconds']['first']:.0f} s / {result['seconds']['repeated']:.0f} s",
            "demo",
        ),
        (
            "… recall@10 / 50 / 100 of its model",
            f"{three('exact')}, {attained} of the best attainable; {baselines}",
            "demo",
        ),
    ]


def _quality(result: dict[str, Any], what: str, name: str) -> list[tuple[str, str, str]]:
    """Both ways of choosing the epoch, beside what is published; and the service."""
    published, first = result["published"], result["runs"]["validation"][0]
    metrics, service, seeds = first["metrics"], first["service"], len(result["runs"]["validation"])
    command = _repeated(f"quality {name}", seeds)

    def both(figures: dict[str, Any]) -> str:
        return " / ".join(
            f"{each['mean']:.4f}" + (f" ± {each['deviation']:.4f}" if len(each["seeds"]) > 1 else "")
            for each in figures.values()
        )

    rows = [
        (
            f"{what}, d = 64: recall@20 / NDCG@20, all chosen on validation",
            f"{both(result['figures']['validation'])}; best published of servable models, ids only, "
            f"{published['recall@20']:.4f} / {published['ndcg@20']:.4f}; item-kNN "
            f"{metrics['item_knn']['recall@20']['value']:.4f} / {metrics['item_knn']['ndcg@20']['value']:.4f}",
            command,
        )
    ]
    if "test" in result["figures"]:
        rows.append(
            (
                "… epoch and norm exponent chosen on the test, as the published figures choose",
                both(result["figures"]["test"]),
                command,
            )
        )
    reached = {
        least: minutes for least, minutes in result["minutes_to_recall@20"].items() if minutes and None not in minutes
    }
    if reached:
        told = ", ".join(f"{least} in {max(minutes):.1f} min" for least, minutes in reached.items())
        rows.append(("… time of training until recall@20 on the test is first reached", told, command))
    rows.append(
        (
            f"… recall@20 of {service['users']:,} users from `POST /recall`, and of exact search",
            f"{service['recall@20']:.4f}, {service['exact_recall@20']:.4f}",
            command,
        )
    )
    return rows


def _beauty(result: dict[str, Any]) -> list[tuple[str, str, str]]:
    figures, published, seeds = result["figures"].values(), result["published"].values(), len(result["runs"])
    told = _several([each["mean"] for each in figures], ".4f")
    if seeds > 1:
        told += f", mean of {seeds} seeds, {_several([each['spread'] for each in figures], '.4f')} from least to most"
    return [
        (
            "Beauty, next item, leave one out, self-attention: HitRate@10 / NDCG@10",
            f"{told}; published SASRec {_several([*published], '.4f')}",
            _repeated("beauty", seeds),
        )
    ]


def _ml_100k(result: dict[str, Any]) -> list[tuple[str, str, str]]:
    metrics, differences, strongest = result["metrics"], result["differences"], result["strongest"]
    rows = []
    for name in ("recall@10", "recall@50", "ndcg@20"):
        reached = metrics[strongest["ranker"]][name]["value"]
        other = f"{strongest['title']}, the strongest baseline on validation, {reached:.4f}"
        ahead = _estimate(differences[f"exact_minus_{strongest['ranker']}"][name])
        rows.append(
            (
                f"MovieLens-100k, global time split, ids, graph, gender, prior: {name.replace('ndcg', 'NDCG')}",
                f"{_estimate(metrics['exact'][name])}; {other}; model less baseline {ahead}",
                "ml_100k",
            )
        )
    return rows


def _ml_100k_rolling(result: dict[str, Any]) -> list[tuple[str, str, str]]:
    """What each step adds where it can: history to known users, user features to new ones, item features to items."""
    figures, rows = result["figures"], []
    for part, name, more, less in (
        ("warm", "known users", "history", "ids"),
        ("cold", "new users", "user features", "history"),
        ("all", "all users", "user features", "ids"),
    ):
        found = figures[part]["recall@50"]
        rows.append(
            (
                f"… five cut-offs in time, {name}: recall@50 with {more} / {less}",
                f"{found[more]['value']:.4f} / {found[less]['value']:.4f}; ahead by "
                + _estimate(found[f"{more} minus {less}"])
                + (
                    f"; popularity that counts users alike {found['balanced popularity']['value']:.4f}"
                    if part == "cold"
                    else ""
                ),
                "ml_100k_rolling",
            )
        )
    new = figures["new items"]["new_recall@50"]
    figure = f"{_estimate(new['item features'])}; chance {new['chance']['value']:.4f}"
    return [*rows, ("… five cut-offs in time, items without an event: recall@50", figure, "ml_100k_rolling")]


def timed_rows(result: dict[str, Any]) -> list[tuple[str, str, str]]:
    """A row for each data set and model: the model beside the baseline that validation found strongest."""
    models = {"default": "the default recipe", "tune": f"`towers tune` in {result['budget_minutes']:g} min"}
    rows = []
    for name, by_model in result["figures"].items():
        for model, figures in by_model.items():
            pair = [figures["recall@20"], figures["ndcg@20"]]
            means = {ranker: _several([each[ranker]["value"] for each in pair], ".4f") for ranker in TIMED_RANKERS}
            ahead = " and ".join(_estimate(each["model minus strongest baseline"]) for each in pair)
            figure = f"{means['model']}; strongest cheap baseline {means['strongest baseline']}; ahead by {ahead}"
            rows.append((f"{TIMED_SETS[name]}, {models[model]}: recall@20 / NDCG@20", figure, "timed --work DIR"))
    return rows


def _tune(result: dict[str, Any]) -> list[tuple[str, str, str]]:
    told = [
        f"{name} {found['share']:.3f} in {found['budget_minutes']:g} min ({found['metric']} "
        f"{found['found']['test']:.4f}, hand-made {found['made']['test']:.4f})"
        for name, found in result["sets"].items()
    ]
    what = "`towers tune` from nothing: what its recipe reaches on the test, as a share of the hand-made recipe"
    return [(what, ", ".join(told), "tune --work DIR")]


def _similarity(result: dict[str, Any]) -> list[tuple[str, str, str]]:
    held_out = {name: metrics["precision@10"] for name, metrics in result["metrics"]["held_out"].items()}
    figure = (
        f"{_estimate(held_out['exact'])}; chance {held_out['chance']['value']:.4f}, item-kNN, which reads their "
        f"ratings, {held_out['item_knn']['value']:.4f}"
    )
    return [('MovieLens-100k, genres, `task = "similarity"`: precision@10 of held-out films', figure, "similarity")]


def _filters(result: dict[str, Any]) -> list[tuple[str, str, str]]:
    """The worst of the three ways in which a filter may know the query, at each selectivity."""
    shares = list(dict.fromkeys(name.partition(", ")[2] for name in result["filters"]))
    of_share = [[run for name, run in result["filters"].items() if name.endswith(f", {share}")] for share in shares]
    recall = _several([min(run["recall"] for run in runs) for runs in of_share], ".3f")
    ms = _several([max(run["p50_ms"] for run in runs) for runs in of_share], ".1f")
    return [
        (
            f"Filters that {' / '.join(shares)} of {result['sizes']['items']:,} items pass: share of the exact "
            f"filtered top {result['sizes']['k']}, median of a query (the worst of three kinds)",
            f"{recall}, {ms} ms; without a filter {result['no_filter']['recall']:.3f}, "
            f"{result['no_filter']['p50_ms']:.1f} ms",
            "filters",
        )
    ]


def _samplers(result: dict[str, Any]) -> list[tuple[str, str, str]]:
    learned, drawn = result["learned_unigram_ms"], f"{result['sizes']['negatives']:,} draws"
    rows = [
        (
            f"Learned unigram, {drawn} and counting, among 10k / 10M items",
            f"{learned['ours, N = 10000']:.2f} / {learned['ours, N = 10000000']:.2f} ms; TensorFlow's op "
            f"{learned['TensorFlow, N = 10000']:.2f} / {learned['TensorFlow, N = 10000000']:.2f} ms",
            "samplers",
        )
    ]
    for size, name in (("N = 1000000", "1M"), ("N = 10000000", "10M")):
        ms = result["log_uniform_ms"][size]
        rows.append(
            (
                f"Log-uniform, {drawn} among {name} items: with replacement / distinct / distinct by XLA",
                f"{ms['ours']:.2f} / {ms['ours, distinct']:.2f} / {ms['ours, distinct, compiled']:.2f} ms; "
                f"TensorFlow's op {ms['TensorFlow']:.2f} / {ms['TensorFlow, distinct']:.2f} ms",
                "samplers",
            )
        )
    return rows


def _optimizers(result: dict[str, Any]) -> list[tuple[str, str, str]]:
    growth, sizes = result["growth"], result["sizes"]
    rows = [
        (
            f"A train step, batch {sizes['large_batch']:,}, Adam, among {_several(growth['items'], ',')} items",
            f"{_several(growth['median_ms'], '.1f')} ms; "
            f"{result['switches']['step_to_bare_products']:.1f} times its bare matrix products",
            "optimizers",
        )
    ]
    effect = ", ".join(f"{name} {ratio:.2f}" for name, ratio in result["switches"]["ratio_to_step"].items())
    rows.append(("… its time with switches of `[train]`, as a share of that without", effect, "optimizers"))
    for batch, runs in result["against_peer"].items():
        told = ", ".join(f"{run['optimizer']} at {run['items']:,} items {run['ratio']:.2f}" for run in runs)
        what = f"… how many times as fast as TFRS's retrieval task with Keras's optimizer, batch {int(batch):,}"
        rows.append((what, told, "optimizers"))
    return rows


def _evaluation(result: dict[str, Any]) -> list[tuple[str, str, str]]:
    worlds = result["worlds"].values()
    seconds = _several([world["seconds"]["towers.top_k"] for world in worlds], ".2f")
    product = _several([world["times_bare_product"]["towers.top_k"] for world in worlds], ".2f")
    faster = _several([world["times_faster_than_factorized_top_k"] for world in worlds], ".1f")
    return [
        (
            f"Exact top {result['sizes']['k']} of {result['sizes']['users']:,} users, seen items masked, on vectors "
            f"{' / '.join(result['worlds'])}",
            f"{seconds} s; {product} times the bare matrix product, {faster} times as fast as TFRS's FactorizedTopK",
            "evaluation",
        )
    ]


def _train_step(result: dict[str, Any]) -> list[tuple[str, str, str]]:
    ratio, sizes = result["ratio_to_in_batch"], result["sizes"]
    return [
        (
            f"A train step with {sizes['negatives']:,} sampled negatives among {sizes['items']:,} items, beside the "
            "in-batch step with as many candidates",
            ", ".join(f"{name} {value:.2f}x" for name, value in ratio.items()),
            "train_step",
        )
    ]


def _full_softmax(result: dict[str, Any]) -> list[tuple[str, str, str]]:
    run = result["items"]["1000000"]
    return [
        (
            "Full softmax over 1,000,000 items, batch 1,024: a step, and memory beside tables, gradients and moments",
            f"{run['step_s']:.1f} s, {run['beside_bytes'] / 1e6:.0f} MB",
            "full_softmax",
        )
    ]


def _prepare(result: dict[str, Any]) -> list[tuple[str, str, str]]:
    formats = result["formats"]
    figures = ", ".join(
        f"{name} {f['seconds']:.0f} s and {f['peak_bytes'] / 1e9:.1f} GB" for name, f in formats.items()
    )
    return [("`towers prepare` of 20 million events: time and peak memory", figures, "prepare")]


def _input(result: dict[str, Any]) -> list[tuple[str, str, str]]:
    runs = result["events"].values()
    times = _several([run["times_training"] for run in runs], ".0f")
    memory = _several([run["peak_anonymous_bytes"] / 1e6 for run in runs], ".0f")
    events = " / ".join(f"{int(events) / 1e6:g}" for events in result["events"])
    return [
        (
            f"Batches with features and histories, from files of {events} million events: times as fast as training "
            "uses them; peak memory that no file backs",
            f"{times}; {memory} MB",
            "input",
        )
    ]


def _repeated(command: str, seeds: int) -> str:
    return command if seeds == 1 else f"{command} --seeds {seeds}"


def _several(values: list[float], form: str) -> str:
    return " / ".join(format(value, form) for value in values)


def _estimate(figure: dict[str, float]) -> str:
    return f"{figure['value']:.4f} ({figure['low']:.4f} to {figure['high']:.4f})"


def _result(name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    return content


if __name__ == "__main__":
    Path(README).write_text(readme_with_table(README.read_text(encoding="utf-8")), encoding="utf-8")
