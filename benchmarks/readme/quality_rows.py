"""The rows of the measured table that are about recall on data."""

from collections.abc import Callable
from functools import partial

from benchmarks.harness.machine import load
from benchmarks.harness.published import PUBLISHED, SOURCES
from benchmarks.readme.figures import Result, Rows, best_baseline, cheap_baseline, index_of, repeated, several
from benchmarks.readme.ml_100k_rows import cold_start, ml_100k, ml_100k_rolling
from pipelines.evaluation.report_table import TITLES, interval

DEMO_BASELINES = ("item_knn", "item_knn_ordered", "popularity", "popularity_recent", "ease")
TIMED_RANKERS = ("model", "strongest baseline")
TIMED_SETS = {
    "ml-100k": "MovieLens-100k, five cut-offs in time",
    "world": "Two synthetic worlds with fashion",
}


def demo(result: Result) -> Rows:
    metrics, share = result["metrics"], result["share_of_attainable"]
    names = ("recall@10", "recall@50", "recall@100")

    def three(ranker: str) -> str:
        return " / ".join(f"{metrics[ranker][name]['value']:.3f}" for name in names)

    attained = " / ".join(f"{share[name]['value']:.0%}" for name in names)
    baselines = ", ".join(f"{TITLES[ranker]} {three(ranker)}" for ranker in DEMO_BASELINES if ranker in metrics)
    return [
        (
            "`towers demo`, first run / repeated",
            f"{result['seconds']['first']:.0f} s / {result['seconds']['repeated']:.0f} s",
            "quality.demo",
        ),
        (
            "… recall@10 / 50 / 100 of its model",
            f"{three('exact')}, {attained} of the best attainable; {baselines}",
            "quality.demo",
        ),
    ]


def quality(
    result: Result, what: str, name: str, split: str, on_validation: str = "all", rest: str = "", ordered: bool = False
) -> Rows:
    """Both ways of choosing the epoch, beside what is published for the split, as sets; and the service."""
    published, by, first = PUBLISHED[split], SOURCES[split], result["runs"]["validation"][0]
    service, seeds = first["service"], len(result["runs"]["validation"])
    baseline, cheap, reads_order = cheap_baseline(result, split)
    unread = ", which reads no order" if ordered and not reads_order else ""
    command = repeated(f"quality.public_splits {name}", seeds)
    command += " --protocols validation" * ("test" not in result["figures"])
    weighted, chosen, disclosed = "", "epoch and norm exponent", ""
    if first["stages"][-1].get("prior"):
        weighted, chosen = " and a weight on popularity", "epoch, norm exponent and prior"
        disclosed = "; the rule by which the prior counts was made after the test had been seen"

    def both(figures: Result) -> str:
        return " / ".join(
            f"{each['mean']:.4f}" + (f" ± {each['deviation']:.4f}" if len(each["seeds"]) > 1 else "")
            for each in figures.values()
        )

    rows = [
        (
            f"{what}, d = 64{weighted}: recall@20 / NDCG@20, {on_validation} chosen on validation",
            both(result["figures"]["validation"])
            + ("" if seeds > 1 else ", one seed")
            + f"; recall@20 of the first seed {interval(first['metrics']['exact']['recall@20'])}"
            + f"; best published of servable models, {by['servable']}{', which reads no order' if ordered else ''}, "
            + several([*published["servable"].values()], ".4f")
            + (f", of any, {by['any']}, {several([*published['any'].values()], '.4f')}" if "any" in published else "")
            + f"; strongest cheap baseline, {baseline}{unread}, "
            + several([cheap["recall@20"], cheap["ndcg@20"]], ".4f")
            + disclosed
            + rest,
            command,
        )
    ]
    if "test" in result["figures"]:
        rows.append(
            (
                f"… {chosen} chosen on the test, as the published figures choose"
                + (", which read no order" if ordered else ""),
                both(result["figures"]["test"]) + ("" if len(result["runs"]["test"]) > 1 else ", one seed"),
                command,
            )
        )
    reached = {
        least: minutes for least, minutes in result["minutes_to_recall@20"].items() if minutes and None not in minutes
    }
    if reached and not ordered:  # the thresholds are figures of models that read no order
        told = ", ".join(f"{least} in {max(minutes):.1f} min" for least, minutes in reached.items())
        what = "… time of `towers train` until recall@20 on the test, which chooses as above, is first reached"
        rows.append((what, told, command))
    rows.append(
        (
            f"… recall@20 of {service['users']:,} users from `POST /recall`, {index_of(first)}, and of exact search",
            f"{service['recall@20']:.4f}, {service['exact_recall@20']:.4f}",
            command,
        )
    )
    return rows


def beauty(result: Result, *, what: str, published_by: str, command: str) -> Rows:
    figures, published, seeds = result["figures"].values(), result["published"].values(), len(result["runs"])
    spread = f"mean of {seeds} seeds, {several([each['spread'] for each in figures], '.4f')} from least to most"
    told = f"{several([each['mean'] for each in figures], '.4f')}, {spread if seeds > 1 else 'one seed'}"
    # The report fits its baselines on both splits; our model, by the protocol, is trained on the first alone.
    knn = [result["runs"][0]["metrics"]["item_knn"][figure]["value"] for figure in result["figures"]]
    ordered = load("baselines_beauty_s3rec" if "s3rec" in command else "baselines_beauty")["baselines"][
        "item_knn_ordered"
    ]
    in_order = [
        several([ordered[fit][figure] for figure in result["figures"]], ".4f") for fit in ("test", "as_reported")
    ]
    return [
        (
            f"{what}, next item, leave one out, self-attention, d = 64: HitRate@10 / NDCG@10",
            f"{told}; published {published_by} {several([*published], '.4f')}; item-kNN, which is fitted on the "
            f"validation items, too, {several(knn, '.4f')}; item-kNN in order, fitted as our model "
            f"{in_order[0]}, on the validation items, too, {in_order[1]}",
            repeated(command, seeds),
        )
    ]


def timed(result: Result, of_search: str = "", of_choice: str = "", of_worlds: str = "") -> Rows:
    """A row for each data set and model, beside the baseline strongest on validation.

    `of_search`: more about tune; `of_choice`: more about the baselines of MovieLens-100k; `of_worlds`: of the worlds.
    """
    models = {"default": "the default recipe", "tune": f"`towers tune` in {result['budget_minutes']:g} min"}
    rows = []
    for name, by_model in result["figures"].items():
        for model, figures in by_model.items():
            pair = [figures["recall@20"], figures["ndcg@20"]]
            means = {ranker: several([each[ranker]["value"] for each in pair], ".4f") for ranker in TIMED_RANKERS}
            ahead = " and ".join(interval(each["model minus strongest baseline"]) for each in pair)
            best = " / ".join(
                f"{TITLES[name]} {each[name]['value']:.4f}" for each in pair for name in [best_baseline(each)]
            )
            figure = (
                f"{means['model']}; the baseline with the best recall@20 on validation {means['strongest baseline']}; "
                f"ahead of it by {ahead}; the best single baseline of each figure on the test {best}"
            )
            what = f"{TIMED_SETS[name]}, {models[model]}: recall@20 / NDCG@20"
            figure += (of_choice if name == "ml-100k" else of_worlds) + of_search * (model == "tune")
            rows.append((what, figure, "quality.timed --work DIR"))
    return rows


def today_of(name: str, metric: str) -> float:
    """The mean of a metric in a committed result of one of our recipes."""
    committed = load(name)
    figures = committed["figures"] if "figures" in committed else committed["metrics"]["exact"]
    found = figures.get("validation", figures)[metric]
    return float(found.get("mean", found.get("value")))


def tune(result: Result, what: str, *, of_start: bool = True, rest: str = "") -> Rows:
    """`of_start`: starts of the search were made from this set; `rest`: what else to say."""
    # The interval is that of the recipe found: of the share it would need the users of both recipes, paired.
    found, made = interval(result["found"]["interval"]), result["made"]["test"]
    now = today_of(result["made"]["result"], result["metric"])
    today = f" (today's {now:.4f}: {result['found']['test'] / now:.3f})" if f"{now:.4f}" != f"{made:.4f}" else ""
    figure = f"{result['share']:.3f}: {result['metric']} {found}, hand-made {made:.4f}{today}; one search{rest}"
    without = bool(result.get("without_starts"))
    own = "without the starts made from it" if without else "with every start"
    with_starts = " --with-starts" * (of_start and not without)
    told = f"`towers tune` in {result['budget_minutes']:g} min, {what}, {own}"
    return [
        (
            f"{told}: its recipe on the test, as a share of the hand-made one",
            figure,
            f"tuning.tune {result['data']}{with_starts} --work DIR",
        )
    ]


def similarity(result: Result) -> Rows:
    held_out = {name: metrics["precision@10"] for name, metrics in result["metrics"]["held_out"].items()}
    figure = (
        f"{interval(held_out['exact'])}; chance {held_out['chance']['value']:.4f}, item-kNN, which reads their "
        f"ratings, {held_out['item_knn']['value']:.4f}"
    )
    return [
        (
            'MovieLens-100k, genres, `task = "similarity"`: precision@10 of held-out films',
            figure,
            "quality.item_to_item",
        )
    ]


gowalla_sets = partial(
    quality,
    split="gowalla",
    on_validation="epoch, norm exponent and prior",
    rest="; rate, temperature, correction, average and balance are those of `gowalla-ordered.toml`",
)
ROWS: dict[str, Callable[[Result], Rows]] = {
    "demo": demo,
    "quality_gowalla": partial(gowalla_sets, what="Gowalla, ids as sets", name="gowalla"),
    "quality_gowalla_taught": partial(
        gowalla_sets, what="Gowalla, ids as sets, one teacher of 256 numbers", name="gowalla-taught"
    ),
    "quality_gowalla_ordered": partial(
        quality, what="Gowalla, ids and their order", name="gowalla-ordered", split="gowalla", ordered=True
    ),
    "quality_ml_1m_split": partial(
        quality,
        what="MovieLens-1M, ids only, one teacher of 256 numbers and EASE",
        name="ml-1m-split",
        split="ml-1m-split",
        rest=", which is one of its teachers; without teachers 0.2797 / 0.2677",
    ),
    "beauty": partial(beauty, what="Beauty, 54,542 items", published_by="SASRec", command="quality.beauty"),
    "beauty_taught": partial(
        beauty,
        what="Three teachers of 128 numbers, the Beauty of 54,542 items",
        published_by="SASRec",
        command="quality.beauty --teachers 3",
    ),
    "beauty_s3rec": partial(
        beauty,
        what="Beauty, 5-core, 12,101 items",
        published_by="HitRate of eSASRec, NDCG of SASRec with sampled softmax,",
        command="quality.beauty --set beauty-s3rec",
    ),
    "beauty_s3rec_taught": partial(
        beauty,
        what="Three teachers of 128 numbers, ids alone, settings by `towers tune`, the Beauty of 12,101 items",
        published_by="HitRate of eSASRec, NDCG of SASRec with sampled softmax,",
        command="quality.beauty --set beauty-s3rec --teachers 3",
    ),
    "beauty_s3rec_categories_taught": partial(
        beauty,
        what="Three teachers of 128 numbers, categories, settings by `towers tune`, the Beauty of 12,101 items",
        published_by="from ids alone: HitRate of eSASRec, NDCG of SASRec with sampled softmax,",
        command="quality.beauty --set beauty-s3rec --categories --teachers 3",
    ),
    "ml_100k": ml_100k,
    "ml_100k_rolling": ml_100k_rolling,
    "cold_start": cold_start,
    "timed": partial(
        timed,
        of_search="; the search of then (version 2), not today's",
        of_choice="; the baseline with the best NDCG@20 on validation has 0.2970 there, and EASE with recent "
        "popularity, a baseline since, 0.1660 / 0.2671 (no results kept)",
        of_worlds="; of the baselines of then, without EASE with recent popularity",
    ),
    "tune_gowalla_with_starts": partial(tune, what="Gowalla in order"),
    "tune_gowalla": partial(
        tune,
        what="Gowalla",
        rest=", after six whose recipes were scored on this test, too: of the hand-made figure of their time 0.894, "
        "0.928, 0.938, 0.986, 0.992 and 1.008, the last with 0.2020; this one ran beside other work",
    ),
    "tune_beauty_with_starts": partial(tune, what="Beauty"),
    "tune_beauty_s3rec": partial(
        tune,
        what="the Beauty of 12,101 items (`sequence` starts from the larger Beauty)",
        of_start=False,
        rest=", after seven by earlier versions, whose recipes were scored on this test, too: 0.956, 0.971, 0.977, "
        "0.986, 1.025 (with teachers), 1.025 and 0.968",
    ),
    "tune_ml_100k": partial(
        tune, what="MovieLens-100k", rest=", after nine whose recipes were scored on this test, too: 0.936 to 1.017"
    ),
    "tune_ml_1m_split": partial(
        tune,
        what="MovieLens-1M",
        rest=", after four whose recipes were scored on this test, too: 0.974, 0.976, 0.979, 0.976",
    ),
    "similarity": similarity,
}
