"""`towers samplers`: lists every sampler with its formula, options and paper."""

from pipelines.cli.listing import listing
from towers.config.samplers import SAMPLERS, Drawing

LETTERS = (
    "c the rank of an item by falling number of training examples, from 0; N of them; q = P(c) of one draw;\n"
    "Q how often c is expected among the candidates: k q with replacement, 1 - (1 - q)^T for distinct draws, T the\n"
    "number of draws that it took until k were distinct."
)


def run() -> str:
    """Returns the listing."""
    return listing("sampler", LETTERS, SAMPLERS, [("samplers that draw", Drawing, ())])
