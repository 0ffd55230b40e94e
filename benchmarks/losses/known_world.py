"""Where losses end on a catalogue whose P(item | user) is known: each at the closed form of the theory, for every k.

Corrected sampled softmax and NCE (log Z per query) at log P + const, uncorrected softmax at log(P / q) + const, NEG at
log(P / (k q)). Every user has a free logit for each item, every batch holds all pairs, weighted by P: the noise drawn
is all that is random. What is looked at is the mean of the logits over the last stage of a falling learning rate.

In: a `Store`. Out: RMS distance to the closed form and spread over seeds, in nats, by loss and k.
"""

import itertools
from typing import Any

import numpy as np
import tensorflow as tf

from benchmarks.harness.array_task import ArrayTask
from benchmarks.harness.resumable import Store
from benchmarks.losses.worlds import Doubles, World, low_rank_world

USERS, ITEMS, POWER = 4, 50, 1.0
KS = (5, 25, 100, 1_000)
SEEDS = (1, 2, 3)
STEPS, LOOKS = 6_000, 20
RATES = (0.1, 0.01, 0.003, 0.001)  # of Adam, a quarter of the steps each
LOSSES: dict[str, dict[str, Any]] = {
    "sampled_softmax": {"name": "sampled_softmax", "correction": 1.0},
    "nce": {"name": "nce", "log_z": "per_query"},
    "uncorrected softmax": {"name": "sampled_softmax", "correction": 0.0},
    "neg": {"name": "neg"},
}
FORMS = {
    "sampled_softmax": "log P + const",
    "nce": "log P + const",
    "uncorrected softmax": "log(P/q) + const",
    "neg": "log(P/(kq))",
}
WITHIN = 0.15  # nats: RMS distance that counts as having reached a closed form


def run(store: Store, *, steps: int = STEPS, ks: tuple[int, ...] = KS) -> dict[str, Any]:
    """All runs of the part."""
    world = low_rank_world(USERS, ITEMS, rank=3, deviation=1.0, seed=5)
    runs: dict[str, dict[int, dict[str, Any]]] = {name: {} for name in LOSSES}
    for name, k in itertools.product(LOSSES, ks):
        settings = {"part": "known", "loss": LOSSES[name], "k": k, "steps": steps, "seeds": SEEDS, "rates": RATES}
        runs[name][k] = store.run(settings, lambda name=name, k=k: train(world, name, k, steps))  # type: ignore[misc]
    table = {
        name: {str(k): {"error": one["error"], "spread": one["spread"]} for k, one in by_k.items()}
        for name, by_k in runs.items()
    }
    forms = (_centred(closed_form(world, name, 1)) for name in ("sampled_softmax", "uncorrected softmax"))
    apart = _rms(np.subtract(*forms))
    claims = {f"{name}: within {WITHIN} nats of {FORMS[name]} at every k": _reached(runs[name]) for name in LOSSES}
    claims |= {
        f"{name}: spread over seeds falls from k to k": _falls([one["spread"] for one in runs[name].values()])
        for name in ("sampled_softmax", "nce")
    }
    shown = ks[min(1, len(ks) - 1)]
    return {
        "claims": claims,
        "table": table,
        "log P to log(P/q)": round(apart, 3),
        "paths": {name: by_k[shown]["path"] for name, by_k in runs.items()},
        "settings": {
            "users": USERS,
            "items": ITEMS,
            "steps": steps,
            "seeds": SEEDS,
            "sampler": f"unigram^{POWER:g}",
            "path of k": shown,
            "forms": FORMS,
        },
    }


def closed_form(world: World, loss: str, k: int) -> Doubles:
    """[U, N] what the loss's optimum is by theory."""
    q = world.counts**POWER / (world.counts**POWER).sum()
    if loss in ("sampled_softmax", "nce"):
        return world.log_p
    return np.asarray(world.log_p - np.log(q) - (np.log(k) if loss == "neg" else 0.0))


def distance(world: World, loss: str, k: int, values: Doubles) -> float:
    """RMS distance in nats of a loss's logits [U, N] to its closed form, up to its free constant (a user's)."""
    difference = values - closed_form(world, loss, k)
    return _rms(difference if loss == "neg" else _centred(difference))


def train(world: World, name: str, k: int, steps: int) -> dict[str, Any]:
    """Every seed's distance to the closed form at the end, the spread between seeds, the path of the first seed."""
    size = world.log_p.shape
    users, items = (part.ravel() for part in np.indices(size))
    task = ArrayTask(
        size[0],
        world.counts,
        size[1],
        len(users),
        LOSSES[name],
        {"name": "unigram", "power": POWER, "negatives": k},
        identity=True,
    )
    batch = task.batch(users, items, (0, 0), np.exp(world.log_p).ravel().astype(np.float32))

    def logits() -> tf.Tensor:
        return task.tables[0][1:]  # the items' vectors are the unit vectors, so a user's vector is its logits

    mean = tf.Variable(tf.zeros(size))

    @tf.function(autograph=False, jit_compile=True)
    def many(seed: tf.Tensor, first: tf.Tensor, last: tf.Tensor) -> None:
        def one(step: tf.Tensor) -> tuple[tf.Tensor]:
            task.step(batch._replace(seed=tf.stack([seed, step])))
            taken = tf.cast(step % (steps // len(RATES)) + 1, tf.float32)
            mean.assign_add((logits() - mean) / taken)
            return (step + 1,)

        tf.while_loop(lambda step: step < last, one, (first,), parallel_iterations=1)

    ends, path = [], []
    for seed in SEEDS:
        task.reset(seed, RATES[0])
        mean.assign(tf.zeros_like(mean))
        for look in range(LOOKS):
            if look % (LOOKS // len(RATES)) == 0:
                # The moments, too: at the start gradients are so large that the second moment never forgets them.
                task.restart(RATES[look * len(RATES) // LOOKS])
                mean.assign(logits())
            many(*(tf.constant(n) for n in (seed, look * steps // LOOKS, (look + 1) * steps // LOOKS)))
            if seed == SEEDS[0]:
                path.append([(look + 1) * steps // LOOKS, round(distance(world, name, k, mean.numpy()), 5)])
        ends.append(mean.numpy().astype(np.float64))
    centred = [end if name == "neg" else _centred(end) for end in ends]
    return {
        "error": [round(distance(world, name, k, end), 5) for end in ends],
        "spread": round(_rms(np.std(centred, axis=0, ddof=1)), 5),
        "path": path,
    }


def _reached(by_k: dict[int, dict[str, Any]]) -> bool:
    return all(error <= WITHIN for one in by_k.values() for error in one["error"])


def _falls(values: list[float]) -> bool:
    return all(later < earlier for earlier, later in itertools.pairwise(values))


def _centred(values: Doubles) -> Doubles:
    return np.asarray(values - values.mean(axis=1, keepdims=True))


def _rms(values: Doubles) -> float:
    return float(np.sqrt(np.mean(np.square(values))))
