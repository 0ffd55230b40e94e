"""The rows of the measured table that show tuned baselines beside our models."""

from collections.abc import Callable
from functools import partial

from benchmarks.harness.machine import origin
from benchmarks.harness.published import NEXT_ITEM
from benchmarks.readme.figures import CHEAP, Result, Rows, several

FIGURES = {"recall@20": "recall@20", "hit_rate@10": "HitRate@10", "ndcg@20": "NDCG@20", "ndcg@10": "NDCG@10"}


def baselines(result: Result, what: str) -> Rows:
    """Every baseline and our model; what is published for models that read the order, where it is known."""
    names = [name for name in FIGURES if name in result["ours"]["test"]]

    def both(test: dict[str, float]) -> str:
        return several([test[name] for name in names], ".4f")

    titles = CHEAP | {"ials": f"iALS of d = {result['baselines']['ials']['settings']['dimension']}"}
    told = [
        f"{titles[name]} {both(content['test'])}"
        + (f" ({origin(content['measured'])})" if "measured" in content else "")
        for name, content in result["baselines"].items()
    ]
    told.append(f"our model {both(result['ours']['test'])}")
    for name in ("item_knn", "item_knn_ordered"):
        content = result["baselines"].get(name)
        if content is not None and content["as_reported"] != content["test"]:
            told.append(f"{titles[name]}, fitted on the validation items, too, {both(content['as_reported'])}")
    told += [f"not fitted: {titles[name]} ({why})" for name, why in result.get("left_out", {}).items()]
    published = [f"{model} {several([*pair], '.4f')}" for model, pair in NEXT_ITEM.get(result["set"], {}).items()]
    if published:
        told.append(f"published {', '.join(published)}")
    shown = " / ".join(FIGURES[name] for name in names)
    chosen = "recall@20" if "recall@20" in names else "NDCG@10"
    by = f"by {chosen} of at most 5,000 users, item-kNN by recall@20 of 2,000"
    what = f"Cheap baselines, settings chosen on validation ({by}) but for widths of factors, {what}: {shown}"
    return [(what, "; ".join(told), f"baselines.run {result['set']}")]


ROWS: dict[str, Callable[[Result], Rows]] = {
    "baselines_gowalla": partial(baselines, what="Gowalla as sets"),
    "baselines_ml_1m_split": partial(baselines, what="MovieLens-1M"),
    "baselines_beauty": partial(baselines, what="the Beauty of 54,542 items"),
    "baselines_beauty_s3rec": partial(baselines, what="the Beauty of 12,101 items"),
}
