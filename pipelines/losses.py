"""`towers losses`: every loss with its formula, options and paper."""

from pipelines.listing import listing
from towers.losses.section import Loss, SampledLoss
from towers.losses.settings import LOSSES

LETTERS = (
    "u a query, y its positive, j a candidate; s the logit (similarity / temperature), cos the cosine, d a distance;\n"
    "[x]+ = max(0, x); Q_j how often j is expected among the candidates; g a loss's own scale; m a margin."
)


def run() -> str:
    """The listing."""
    return listing(
        "loss", LETTERS, LOSSES, [("every loss", Loss, ()), ("losses that take a sampler", SampledLoss, (Loss,))]
    )
