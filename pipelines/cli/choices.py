"""`towers losses` and `towers samplers`: list every choice with its formula, options and paper."""

from typing import Literal

from pipelines.cli.listing import listing
from towers.config.loss_section import Loss, SampledLoss
from towers.config.losses import LOSSES
from towers.config.samplers import SAMPLERS, Drawing

LOSS_LETTERS = (
    "y the positive of a query (p or i where there are several), j or n a negative; N the number of items; s the\n"
    "logit (similarity / temperature, or the similarity itself where a loss has its own scale g), cos the cosine, d a\n"
    "distance, l a label; Q_j how often j is expected among the candidates, c the strength of its correction\n"
    "s - c log Q; m a margin; a, D, t2 and w as the options say; [x]+ = max(0, x); sig the logistic function."
)
SAMPLER_LETTERS = (
    "c the rank of an item by falling number of training examples, from 0; N of them; q = P(c) of one draw;\n"
    "Q how often c is expected among the candidates: k q with replacement, 1 - (1 - q)^T for distinct draws, T the\n"
    "number of draws that it took until k were distinct."
)


def run(section: Literal["loss", "sampler"]) -> str:
    """Returns the listing of a section of recipes."""
    if section == "sampler":
        return listing(section, SAMPLER_LETTERS, SAMPLERS, [("samplers that draw", Drawing, ())])
    shared = [("every loss", Loss, ()), ("losses that take a sampler", SampledLoss, (Loss,))]
    return listing(section, LOSS_LETTERS, LOSSES, shared)
