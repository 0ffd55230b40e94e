"""What `towers tune` searches of each family of models: its settings, and their values in order."""

from pipelines.tuning.traits import SMALL_CATALOGUE, Traits

Value = float | int | str | bool
Values = tuple[Value, ...]

GIVEN, USERS = "given", "users"  # the families of a recipe with its own features, and of examples that are whole users
BATCH_SIZES, NEGATIVES = (256, 512, 1024, 2048, 4096, 8192), (0, 256, 1024, 4096)


def settings(family: str, traits: Traits) -> dict[str, Values]:
    """Returns the settings of a family, each with its values in order; the most important setting first."""
    own: dict[str, Values] = {}
    if family in ("graph", USERS):
        weights: Values = (0.25, 0.4, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0)
        own["neighbours"] = (0.0, *weights) if family == USERS else weights
        if traits.timed:
            own["neighbours_recency"] = (1.0, 4.0, 16.0, 64.0, 256.0)
    if family in ("history", "sequence"):
        own["user_id"] = ("no", "masked", "yes")
    if family == "history":
        own |= {"pooling": ("mean", "sqrt", "attention"), "share_item_table": (True, False)}
        own["max_length"] = (10, 20, 50, 100)
    if family == "sequence":
        own |= {"pooled": (False, True), "sequence_dropout": (0.0, 0.1, 0.2, 0.3, 0.5), "blocks": (1, 2, 3)}
        own["max_length"] = (20, 50, 100)
        if traits.clock:
            own["time_gaps"] = (False, True)
    if traits.timed:
        own["recency"] = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)
    if traits.few_pairs:
        own["item_rows"] = ("cooccurrence", "random")
    if traits.query or traits.candidate:
        own["attributes"] = (False, True)
    # First what differs most between data sets: of temperature and rate all starts have about the same.
    counts: dict[str, Values] = {}
    if traits.timed or traits.few_pairs:
        counts = {"cooccurrence": (0.0, 1.0, 3.0, 6.0), **({} if family == USERS else {"contrast": (0.0, 0.1, 0.3)})}
    losses: Values = ("sampled_softmax", "bsl", *(("full_softmax",) if traits.items <= SMALL_CATALOGUE else ()))
    return {
        **counts,
        "correction": (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0),
        "temperature": (0.03, 0.042, 0.05, 0.06, 0.07, 0.085, 0.1, 0.12, 0.14, 0.17, 0.2, 0.24, 0.3, 0.4, 0.5),
        "learning_rate": (1e-4, 2e-4, 3e-4, 5e-4, 7e-4, 1e-3, 1.4e-3, 2e-3, 3e-3, 4e-3, 6e-3, 8e-3, 1.2e-2, 2e-2),
        "batch_size": BATCH_SIZES,
        **own,
        "loss": losses,
        "weight_decay": (0.0, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0),
        "dropout": (0.0, 0.1, 0.2, 0.3, 0.5),
        "negatives": NEGATIVES,
        "balance": (0.0, 0.25, 0.5, 0.75),
        "known_positives": (0, 100, 500),
        "average": (0.0, 0.99, 0.999),
    }
