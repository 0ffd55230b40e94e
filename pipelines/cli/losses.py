"""`towers losses`: lists every loss with its formula, options and paper."""

from pipelines.cli.listing import listing
from towers.config.loss_section import Loss, SampledLoss
from towers.config.losses import LOSSES

LETTERS = (
    "y the positive of a query (p or i where there are several), j or n a negative; N the number of items; s the\n"
    "logit (similarity / temperature, or the similarity itself where a loss has its own scale g), cos the cosine, d a\n"
    "distance, l a label; Q_j how often j is expected among the candidates, c the strength of its correction\n"
    "s - c log Q; m a margin; a, D, t2 and w as the options say; [x]+ = max(0, x); sig the logistic function."
)


def run() -> str:
    """Returns the listing."""
    return listing(
        "loss", LETTERS, LOSSES, [("every loss", Loss, ()), ("losses that take a sampler", SampledLoss, (Loss,))]
    )
