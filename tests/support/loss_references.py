"""Every loss once more, as slow loops over floats straight from its formula: what the tests compare with.

In: one `Query` (the entries that count, nothing else) and the loss's options. Out: its loss, a float. `REFERENCES` goes
by the losses' names.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass
class Query:
    """One query's positives and negatives: scores and log Q; `columns` is M, masked ones counted."""

    positives: list[float]
    log_q_positives: list[float]
    negatives: list[float]
    log_q_negatives: list[float]
    columns: int
    labels: list[float] = field(default_factory=list)
    log_z: float = 0.0
    catalogue: int = 0
    # Columns of the same user, for bsl: (score, log Q), and the negatives without them.
    same: list[tuple[float, float]] = field(default_factory=list)


def sig(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def cross_entropy(logits: list[float], target: list[float]) -> float:
    whole = sum(math.exp(logit) for logit in logits)
    return -sum(t * math.log(math.exp(logit) / whole) for t, logit in zip(target, logits, strict=True))


def smoothed(positives: int, negatives: int, e: float) -> list[float]:
    """Label of each of positives, then negatives: 1 - e shared by the positives, e by all."""
    everywhere = e / (positives + negatives)
    return [(1 - e) / positives + everywhere] * positives + [everywhere] * negatives


def average(values: list[float]) -> float:
    return sum(values) / len(values)


def sampled_softmax(q: Query, correction: float, positive: str, label_smoothing: float) -> float:
    if positive == "included":
        own = [s - correction * log_q for s, log_q in zip(q.positives, q.log_q_positives, strict=True)]
        others = [s - correction * log_q for s, log_q in zip(q.negatives, q.log_q_negatives, strict=True)]
        return cross_entropy(own + others, smoothed(len(own), len(others), label_smoothing))
    if not q.negatives:
        return 0.0
    losses = []
    for s_y, log_q_y in zip(q.positives, q.log_q_positives, strict=True):
        q_y = math.exp(log_q_y) / q.columns
        logits = []
        for s_j, log_q_j in zip(q.negatives, q.log_q_negatives, strict=True):
            expected = len(q.negatives) * (math.exp(log_q_j) / q.columns) / (1 - q_y)
            logits.append(s_j - correction * math.log(expected))
        others = sum(math.exp(logit) for logit in logits)
        probability = math.exp(s_y) / (math.exp(s_y) + others)
        loss = -(1 - probability) * (s_y - math.log(others))
        losses.append(loss + label_smoothing * (s_y - average([s_y, *logits])))
    return average(losses)


def nce(q: Query, label_smoothing: float) -> float:
    loss = 0.0
    for s, log_q in zip(q.positives, q.log_q_positives, strict=True):
        x = s - q.log_z - log_q
        label = (1 - label_smoothing) / len(q.positives) + label_smoothing / 2
        loss -= label * math.log(sig(x)) + (1 - label) * math.log(sig(-x))
    for s, log_q in zip(q.negatives, q.log_q_negatives, strict=True):
        x = s - q.log_z - log_q
        loss -= label_smoothing / 2 * math.log(sig(x)) + (1 - label_smoothing / 2) * math.log(sig(-x))
    return loss


def neg(q: Query, label_smoothing: float) -> float:
    loss = 0.0
    for s in q.positives:
        label = (1 - label_smoothing) / len(q.positives) + label_smoothing / 2
        loss -= label * math.log(sig(s)) + (1 - label) * math.log(sig(-s))
    for s in q.negatives:
        loss -= label_smoothing / 2 * math.log(sig(s)) + (1 - label_smoothing / 2) * math.log(sig(-s))
    return loss


def gbce(q: Query, calibration: float) -> float:
    rate = len(q.negatives) / (q.catalogue - 1)
    # The paper's form divides by the rate, which is 0 without negatives; its limit is 1 - t.
    beta = rate * (calibration * (1 - 1 / rate) + 1 / rate) if rate else 1 - calibration
    loss = 0.0
    for s in q.positives:
        label = 1 / len(q.positives)
        loss -= label * math.log(sig(s) ** beta) + (1 - label) * math.log(sig(-s))
    for s in q.negatives:
        loss -= math.log(1 - sig(s))
    return loss


def bce(q: Query, label_smoothing: float) -> float:
    losses = []
    for s, label in zip(q.positives, q.labels, strict=True):
        label = label * (1 - label_smoothing) + label_smoothing / 2
        losses.append(-label * math.log(sig(s)) - (1 - label) * math.log(1 - sig(s)))
    return average(losses)


def am_softmax(q: Query, scale: float, margin: float, correction: float, label_smoothing: float) -> float:
    losses = []
    others = [scale * s - correction * log_q for s, log_q in zip(q.negatives, q.log_q_negatives, strict=True)]
    for s, log_q in zip(q.positives, q.log_q_positives, strict=True):
        own = scale * (s - margin) - correction * log_q
        losses.append(cross_entropy([own, *others], smoothed(1, len(others), label_smoothing)))
    return average(losses)


def distance(cosine: float) -> float:
    return math.sqrt(1 - cosine)


def distance_softmax(q: Query, scale: float, margin: float, correction: float, label_smoothing: float) -> float:
    losses = []
    others = [
        -scale * distance(s) - correction * log_q for s, log_q in zip(q.negatives, q.log_q_negatives, strict=True)
    ]
    for s, log_q in zip(q.positives, q.log_q_positives, strict=True):
        own = -scale * (distance(s) + margin) - correction * log_q
        losses.append(cross_entropy([own, *others], smoothed(1, len(others), label_smoothing)))
    return average(losses)


def triplet(q: Query, on: str, mining: str, smooth: bool, scale: float, margin: float) -> float:
    def gap(s_p: float, s_n: float) -> float:
        if on == "similarity":
            return s_n - s_p
        if on == "euclidean":
            return math.sqrt(2 - 2 * s_p) - math.sqrt(2 - 2 * s_n)
        return distance(s_p) - distance(s_n)

    def penalty(x: float) -> float:
        return math.log(1 + math.exp(scale * (x + margin))) if smooth else max(0.0, x + margin)

    losses = []
    for s_p in q.positives:
        gaps = [gap(s_p, s_n) for s_n in q.negatives]
        if mining == "hardest":
            gaps = [max(gaps)] if gaps else []
        elif mining == "semi_hard":
            within = [x for x in gaps if x > -margin]
            further = [x for x in within if x < 0]
            gaps = [max(further)] if further else within
        losses.append(average([penalty(x) for x in gaps]) if gaps else 0.0)
    return average(losses)


def pair(q: Query, scale: float, margin: float, correction: float) -> float:
    whole = 1.0
    for s_p, log_q_p in zip(q.positives, q.log_q_positives, strict=True):
        for s_n, log_q_n in zip(q.negatives, q.log_q_negatives, strict=True):
            whole += math.exp(scale * (s_n - s_p + margin) - correction * (log_q_n - log_q_p))
    return math.log(whole)


def circle(
    q: Query,
    scale: float,
    margin: float,
    positive_optimum: float | None,
    negative_optimum: float | None,
    positive_delta: float | None,
    negative_delta: float | None,
) -> float:
    o_p = 1 + margin if positive_optimum is None else positive_optimum
    o_n = -margin if negative_optimum is None else negative_optimum
    d_p = 1 - margin if positive_delta is None else positive_delta
    d_n = margin if negative_delta is None else negative_delta
    negatives = sum(math.exp(scale * max(0.0, s - o_n) * (s - d_n)) for s in q.negatives)
    positives = sum(math.exp(-scale * max(0.0, o_p - s) * (s - d_p)) for s in q.positives)
    return math.log(1 + negatives * positives)


def graded_parts(items: list[tuple[float, float]], others: list[tuple[float, float]], m: float) -> tuple[float, float]:
    """Numerator and denominator of the pairs whose higher item is among `items` and whose lower one among `others`."""
    top = bottom = 0.0
    for s_a, l_a in items:
        for s_b, l_b in others:
            weight = max(0.0, l_a - l_b)
            top += weight * max(0.0, s_b - s_a + m)
            bottom += weight
    return top, bottom


def graded_hinge(q: Query, margin: float) -> float:
    """Pairs of one list; the tests write the batch form with `graded_parts` themselves."""
    items = list(zip(q.positives, q.labels, strict=True))
    top, bottom = graded_parts(items, items, margin)
    return top / bottom if bottom else 0.0


def ccl(q: Query, margin: float, negative_weight: float) -> float:
    pull = average([max(0.0, 1 - s) for s in q.positives])
    push = average([max(0.0, s - margin) for s in q.negatives]) if q.negatives else 0.0
    return pull + negative_weight * push


def bsl(q: Query, positive_group: str, negative_scale: float, correction: float, label_smoothing: float) -> float:
    if not q.negatives:
        return 0.0
    own = [s - correction * log_q for s, log_q in zip(q.positives, q.log_q_positives, strict=True)]
    others = [s - correction * log_q for s, log_q in zip(q.negatives, q.log_q_negatives, strict=True)]
    if positive_group == "batch":
        own += [s - correction * log_q for s, log_q in q.same]
        attracted = math.log(average([math.exp(logit) for logit in own]))
    else:
        attracted = average(own)
    attracted = (1 - label_smoothing) * attracted + label_smoothing * average(own + others)
    return -attracted + negative_scale * math.log(average([math.exp(logit) for logit in others]))


REFERENCES: dict[str, Callable[..., float]] = {
    "sampled_softmax": sampled_softmax,
    "nce": nce,
    "neg": neg,
    "gbce": gbce,
    "bce": bce,
    "am_softmax": am_softmax,
    "distance_softmax": distance_softmax,
    "triplet": triplet,
    "pair": pair,
    "circle": circle,
    "graded_hinge": graded_hinge,
    "ccl": ccl,
    "bsl": bsl,
}
