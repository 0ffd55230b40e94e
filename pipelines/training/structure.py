"""In what two recipes differ, in all or in what makes the weights, moments and counts of one fit the other."""

from typing import Any

from towers.config.recipe import Config

# What decides which weights there are, and what they mean. The rest of [model] may change from run to run.
OF_MODEL = (
    "dimension",
    "similarity",
    "combine",
    "query_layers",
    "candidate_layers",
    "cross_layers",
    "cross_projection",
    "temperature_trainable",
)
OF_DATA = ("max_label",)  # of a loss: follows from the data
OF_START = ("start", "start_window")  # of ids: say where a training begins, not what there is
MOST_TOLD = 5  # differences in one message


def differences(there: Config, here: Config, *, whole: bool = False) -> list[str]:
    """One text for each key in which two resolved recipes differ: the key, and both values.

    Args:
        there: one recipe.
        here: the other.
        whole: compares every setting; False those that must be the same for the weights of one to fit the other.
    """
    one, other = (each.model_dump(mode="json") if whole else _structure(each) for each in (there, here))
    return _differences(one, other)


def told(found: list[str]) -> str:
    """The first of the differences, and how many more there are."""
    return "; ".join(found[:MOST_TOLD]) + (f"; and {len(found) - MOST_TOLD} more" if found[MOST_TOLD:] else "")


def _structure(config: Config) -> dict[str, Any]:
    dump = config.model_dump(mode="json")
    return {
        "task": dump["task"],
        "features": {
            side: {
                name: {key: value for key, value in feature.items() if key not in OF_START}
                for name, feature in (dump["features"][side] or {}).items()
            }
            for side in ("query", "candidate")
        },
        "model": {key: dump["model"][key] for key in OF_MODEL},
        "loss": {key: value for key, value in dump["loss"].items() if key not in OF_DATA},
        "sampler": {} if config.negatives is None else config.negatives.model_dump(mode="json"),
        "optimizer": {"name": dump["optimizer"]["name"]},
    }


def _differences(there: Any, here: Any, key: str = "") -> list[str]:
    if isinstance(there, dict) and isinstance(here, dict):
        found = []
        for name in dict.fromkeys([*there, *here]):
            inner = f"{key}.{name}".lstrip(".")
            if name in there and name in here:
                found += _differences(there[name], here[name], inner)
            else:
                found.append(f"{inner} is only {'there' if name in there else 'here'}")
        return found
    return [] if there == here else [f"{key} is {there!r} there and {here!r} here"]
