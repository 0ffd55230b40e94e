"""What the comparison on real data claims; each claim is computed from the result that holds it.

In: cells or runs of `benchmarks.losses.on_data`. Out: claim to whether it holds.
"""

from typing import Any

from benchmarks.losses.grid import CHOSEN_BY, best_of

CORRECTED = ("sampled_softmax", "bsl", "am_softmax")
UNCORRECTED = ("triplet", "circle", "ccl", "neg", "gbce")
MOST_SHARE = 0.25  # of what the samplers of any uncorrected loss differ by


def of_matrix(cells: dict[str, dict[str, Any]]) -> dict[str, bool]:
    """Claims of the part ml-100k."""
    claims, between = {}, {}
    for row in (*CORRECTED, *UNCORRECTED):
        found = [cell["test"][CHOSEN_BY] for cell in cells[row].values() if "test" in cell]
        between[row] = max(found) - min(found)
    most = MOST_SHARE * min(between[row] for row in UNCORRECTED)
    for row in CORRECTED:
        claim = f"{row}, corrected: between samplers at most {MOST_SHARE} of the test {CHOSEN_BY} of uncorrected losses"
        claims[claim] = between[row] <= most
    for row in UNCORRECTED:
        claims[f"{row}, which has no correction: uniform is its best sampler"] = best_of(cells[row]) == "uniform"
    return claims


def of_starts(runs: list[dict[str, Any]]) -> dict[str, bool]:
    """A further claim of the part ml-100k; `runs` of NCE, the first with log_z = 0, the others from log N on."""
    first, *others = (run["test"][CHOSEN_BY] for run in runs)
    return {"nce with log_z = 0 finds at most half of what it finds with a start at log N": first <= min(others) / 2}


def of_strengths(runs: list[dict[str, Any]]) -> dict[str, bool]:
    """Claims of the part logq; `runs` by rising strength."""
    popularity = [run["valid"]["mean_popularity"] for run in runs]
    return {
        "the stronger the correction, the more popular is what is recommended": popularity == sorted(popularity),
        "the whole correction finds more than none (test)": runs[-1]["test"][CHOSEN_BY] > runs[0]["test"][CHOSEN_BY],
    }


def of_gowalla(table: dict[str, dict[str, Any]]) -> dict[str, bool]:
    """Claims of the part gowalla; by validation, on which the settings were chosen."""
    found = {row: cell["valid"][CHOSEN_BY] for row, cell in table.items() if "valid" in cell}
    plain = found["sampled_softmax"]
    ahead = {"pair": "pair, of four positives", "full_softmax": "full_softmax"}
    claims = {f"{name}: ahead of sampled_softmax": found[row] > plain for row, name in ahead.items()}
    return claims | {
        f"{row}, which has no correction: behind sampled_softmax": found[row] < plain for row in UNCORRECTED
    }
