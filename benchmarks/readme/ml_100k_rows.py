"""The rows of the measured table that are about the recipe of MovieLens-100k, and about what has no event there."""

from benchmarks.readme.figures import Result, Rows, best_baseline, several
from pipelines.evaluation.report_table import TITLES, interval

ROLLING_MODELS = {"recipe": "the recipe with its prior", "user features": "user features, without the recipe's prior"}
BALANCED = "balanced popularity"
ROLLING_TITLES = TITLES | {BALANCED: "popularity that counts users alike", "ease_recent": "EASE with recent popularity"}
ROLLING_BASELINES = ("popularity", BALANCED, "popularity_recent", "item_knn", "ease", "ease_recent")
COLD_START_SETS = {"world": "Three synthetic worlds", "ml-100k": "MovieLens-100k, five cut-offs"}


def ml_100k(result: Result) -> Rows:
    metrics, differences, strongest = result["metrics"], result["differences"], result["strongest"]
    rows = []
    for name in ("recall@10", "recall@50", "ndcg@20"):
        reached = metrics[strongest["ranker"]][name]["value"]
        other = f"{strongest['title']}, the strongest baseline on validation, {reached:.4f}"
        ahead = interval(differences[f"exact_minus_{strongest['ranker']}"][name])
        best, higher = best_baseline({ranker: found[name] for ranker, found in metrics.items()}), ""
        if (value := metrics[best][name]["value"]) > reached:
            less = interval(differences[f"exact_minus_{best}"][name])
            higher = f"; higher on the test is {TITLES[best]}, {value:.4f}: model less it {less}"
        rows.append(
            (
                f"MovieLens-100k, global time split, ids, graph, gender, prior: {name.replace('ndcg', 'NDCG')}",
                f"{interval(metrics['exact'][name])}; {other}; model less baseline {ahead}{higher}",
                "quality.ml_100k",
            )
        )
    verdict = f"{result['verdict']['metric']}, what the report's verdict is about"
    text = result["verdict"]["text"].removeprefix(f"{result['verdict']['metric']} ")
    rows.append((f"MovieLens-100k, global time split, ids, graph, gender, prior: {verdict}", text, "quality.ml_100k"))
    return rows


def ml_100k_rolling(result: Result) -> Rows:
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
                + interval(found[f"{more} minus {less}"])
                + (f"; popularity that counts users alike {found[BALANCED]['value']:.4f}" if part == "cold" else ""),
                "quality.rolling",
            )
        )
    new = figures["new items"]["new_recall@50"]
    figure = f"{interval(new['item features'])}; chance {new['chance']['value']:.4f}"
    rows.append(("… five cut-offs in time, items without an event: recall@50", figure, "quality.rolling"))
    for model, name in ROLLING_MODELS.items():
        for metric, found in figures["all"].items():
            ahead = ", ".join(
                f"{ROLLING_TITLES[each]} {interval(found[f'{model} minus {each}'])}" for each in ROLLING_BASELINES
            )
            what = f"… five cut-offs in time, all users, {name}: {metric}; less each baseline's"
            rows.append((what, f"{found[model]['value']:.4f}; {ahead}", "quality.rolling"))
    return rows


def cold_start(result: Result) -> Rows:
    """Of each data set the items, then the users, that had no event."""
    rows = []
    for name, title in COLD_START_SETS.items():
        items, users = (result["figures"][name][part] for part in ("new items", "new users"))
        model, even = users["vectors, x = 0"], items["vectors, x = 1"]
        content, chance = items["content"], items["chance"]
        figure = f"{interval(even)} / {several([content['value'], chance['value']], '.4f')}"
        what = f"{title}, pretrained vectors, x = 1, items without an event: recall@50 / content / chance"
        rows.append((what, figure, "quality.cold_start --work DIR"))
        popular, item_knn = (users[each]["value"] for each in ("popularity_users", "item_knn"))
        figure = f"{several([model['value'], popular, item_knn], '.4f')}; ahead by "
        figure += interval(users["vectors, x = 0 minus popularity_users"])
        if item_knn > popular:
            figure += f"; of item-kNN {interval(users['vectors, x = 0 minus item_knn'])}"
        what = "… another model, x = 0, users without an event: recall@50 / popularity by users / item-kNN"
        rows.append((what, figure, "quality.cold_start --work DIR"))
    return rows
