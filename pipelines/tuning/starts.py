"""Where the search of `towers tune` starts: at two points of each family, made from recipes that were tuned by hand.

Those name the public data set of their recipe, so that a search can be judged on that set without them. Where there
are fewer than two, a point comes in that uses all that the events tell, then the same with less logQ correction, or a
plain one for whole users, sequences and recipes with features of their own.
"""

from collections.abc import Collection, Mapping

from pipelines.tuning.settings import BATCH_SIZES, GIVEN, NEGATIVES, USERS, Value, settings
from pipelines.tuning.traits import DENSE, Traits

Point = Mapping[str, Value]

# The prior puts back the popularity that a weaker correction leaves out of the vectors. `graph` after three epochs, on
# validation: on Gowalla 0.1809 with all of the correction, 0.1842 with half; on MovieLens-1M 0.2411, with half 0.2391.
LESS_CORRECTION: Point = {"loss": "bsl", "correction": 0.5}
# A plain start has the first of each setting's values, but for these: of a graph LightGCN's first hop, of a sequence
# SASRec's.
PLAIN: Point = {
    "correction": 1.0,
    "temperature": 0.1,
    "learning_rate": 0.002,
    "batch_size": 2048,
    "attributes": True,
    "neighbours": 1.0,
    "sequence_dropout": 0.2,
    "blocks": 2,
    "max_length": 50,
}
# Recall is a mean over users, the examples here, so they count more alike.
PLAIN_USERS: Point = {"neighbours": 0.0, "balance": 0.5}
GOWALLA, ML_1M, ML_100K, BEAUTY = ORIGINS = ("gowalla", "ml-1m", "ml-100k", "beauty")


def starts(family: str, traits: Traits, dimension: Value, without: Collection[str] = ()) -> tuple[Point, ...]:
    """Returns the points that a family begins with, less those made from data sets in `without`, of `ORIGINS`.

    All name the same settings, also such as are not searched.
    """
    plain = {name: PLAIN.get(name, values[0]) for name, values in settings(family, traits).items()}
    plain |= {"dimension": dimension, **(PLAIN_USERS if family == USERS else {})}
    made = [point for origins, point in _made(family, traits, plain) if not origins & set(without)]
    rich = _rich(family, plain)
    points = [*made, rich, plain if family in (USERS, "sequence", GIVEN) else {**rich, **LESS_CORRECTION}]
    points = [_fitting(each, traits.items // 2) for each in points]
    return tuple(each for place, each in enumerate(points) if each not in points[:place])[:2]


def _fitting(point: Point, most: int) -> Point:
    """The point with batches and negatives of at most this many items: beyond, a step would mostly score repeats."""
    fitting = {
        name: max(each for each in values if each <= max(values[0], min(int(point[name]), most)))
        for name, values in (("batch_size", BATCH_SIZES), ("negatives", NEGATIVES))
    }
    return {**point, **fitting}


def _rich(family: str, plain: Point) -> Point:
    """A point where an item is also what is taken with it, and in timed data late events weigh more."""
    told: dict[str, Value] = {"cooccurrence": 1.0, "recency": 4.0, "neighbours_recency": 4.0}
    if family == "sequence":
        # SASRec gains from many: Klenitskiy & Vasilev, RecSys 2023. On Gowalla `graph` gained nothing from 1,024.
        told["negatives"] = 1024
    return {name: told.get(name, value) for name, value in plain.items()}


def _made(family: str, traits: Traits, plain: Point) -> list[tuple[set[str], Point]]:
    """Each start of a family with the data sets that it was made from."""
    partial: Point = {"loss": "bsl", "correction": 0.4, "learning_rate": 0.001}
    # In dense data many of a batch's items are the user's own positives, and users with many positives have
    # correspondingly many examples.
    dense: Point = {"temperature": 0.17, "learning_rate": 0.001, "batch_size": 1024}
    dense = {**dense, "known_positives": 500, "balance": 0.5, "average": 0.999}
    is_dense = traits.density > DENSE
    if family == "ids":
        own = ({ML_1M}, dense) if is_dense else ({GOWALLA}, partial)
        return [(own[0], {**plain, **own[1], "negatives": 1024})]
    if family == USERS:
        return [({ML_1M}, {**plain, "temperature": 0.17, "average": 0.99})]
    if family == "graph":
        hop: Point = {"loss": "bsl", "correction": 0.3, "temperature": 0.12, "learning_rate": 0.0014}
        hop = {**hop, "neighbours": 4.0, "balance": 0.25, "average": 0.999}
        # Where the data have them.
        hop = {**hop, "cooccurrence": 6.0 if traits.timed else 3.0, "contrast": 0.1}
        hop = {**hop, "recency": 4.0, "neighbours_recency": 16.0}
        one_hop: Point = {name: hop.get(name, value) for name, value in plain.items()}
        mixed: Point = {**plain, **partial, "neighbours": 3.0, **dense, "correction": 0.7}
        if traits.timed:
            mixed = {**mixed, "recency": 8.0, "neighbours_recency": 16.0, "cooccurrence": 3.0}
        both = [({GOWALLA}, one_hop), ({GOWALLA, ML_1M}, mixed)]
        return both[::-1] if is_dense else both
    if family == "history":
        return [({ML_100K}, {**plain, "user_id": "masked", "temperature": 0.2})]
    if family == GIVEN:
        return []
    attended: Point = {**plain, "cooccurrence": 1.0, "negatives": 4096}
    smaller: Point = {"pooled": True, "batch_size": 256, "negatives": 1024, "correction": 0.5}
    return [({BEAUTY}, attended), ({BEAUTY}, {**attended, **smaller})]
