"""Names for trackers, which allow fewer signs than ours: no two names of ours become one of theirs.

A name that loses something ends with a mark, the first digits of its SHA-256: ``a/b`` and ``a_b`` stay two names.
"""

import hashlib
import re

MARK = 8  # hexadecimal digits
LONGEST_PART = 200  # of the 250 characters that MLflow allows
# What every name of a rule or figure holds, and what takes its place: a name is whole if this leads back to it.
REVERSIBLE = {"@": "_at_", ", ": "_ ", "baseline's": "baseline_s"}


def one_part(name: str) -> str:
    """Returns a name that is one part of a path, without a slash: a value of a column may be an address."""
    return _marked(name.replace("/", "_"), name) if "/" in name else name


def mlflow_name(path: str) -> str:
    """Returns the name in MLflow: ``exact/recall_at_20`` of ``exact/recall@20``; other signs that it forbids are _."""
    return "/".join(map(_mlflow_part, path.split("/")))


def _mlflow_part(part: str) -> str:
    told = part
    for ours, theirs in REVERSIBLE.items():
        told = told.replace(ours, theirs)
    told = back = re.sub(r"[^\w.: -]", "_", told)
    for ours, theirs in REVERSIBLE.items():
        back = back.replace(theirs, ours)
    return told if back == part and len(told) <= LONGEST_PART else _marked(told[:LONGEST_PART], part)


def _marked(told: str, name: str) -> str:
    return f"{told}-{hashlib.sha256(name.encode()).hexdigest()[:MARK]}"
