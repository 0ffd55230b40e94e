"""Names the features through which a training example sees events that come after it. No TensorFlow here."""

from collections.abc import Iterator

from towers.config.feature_sides import Features
from towers.config.features import Feature


def look_ahead(features: Features, *, timed: bool) -> list[str]:
    """The key of each feature that shows an example its own event or later ones, and what it shows.

    No feature shows a held-out event. What is counted once for all examples, such as vocabularies and the number of an
    item's users, is not listed.

    Args:
        features: resolved; a side that is still to be derived adds nothing.
        timed: whether the split respects the order of the events; without it there is no ahead.
    """
    return [
        f"features.{side}.{name}: {'; '.join(reasons)}"
        for side, own in features.named()
        for name, feature in own.items()
        if timed and (reasons := list(_reasons(side, feature)))
    ]


def _reasons(side: str, feature: Feature) -> Iterator[str]:
    match feature.kind:
        case "history" if feature.window == "others":
            yield "the user's later items (window = 'others')"
        case "neighbours" if side == "candidate":
            yield "all users of an item, the example's own and later ones among them"
        case "neighbours":
            if feature.window != "earlier":
                yield "all items of the user, the example's own and later ones among them (window = 'all')"
            if feature.cooccurrence:
                yield "co-occurrence counted over all training events (cooccurrence)"
        case "cooccurrence":
            yield "co-occurrence counted over all training events"
