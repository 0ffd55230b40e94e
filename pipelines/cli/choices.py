"""`towers losses` and `towers samplers`: list every choice with its formula, options and paper.

Options that several choices share are listed once.
"""

from collections.abc import Sequence
from typing import Any, Literal, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt
from pydantic.fields import FieldInfo

from towers.config.loss_section import Loss, SampledLoss
from towers.config.losses import LOSSES
from towers.config.samplers import SAMPLERS, Drawing
from towers.config.section import Section

LOSS_LETTERS = (
    "y the positive of a query (p or i where there are several), j or n a negative; N the number of items, k of a\n"
    "query's negatives; s the logit (similarity / temperature, or the similarity itself where a loss has its own\n"
    "scale g), cos the cosine, d a distance, l a label; Q_j how often j is expected among the candidates, c the\n"
    "strength of its correction s - c log Q; m a margin; a, D, t, t2 and w as the options say; [x]+ = max(0, x); sig\n"
    "the logistic function."
)
SAMPLER_LETTERS = (
    "c the rank of an item by falling number of training examples, from 0; N of them; q = P(c) of one draw;\n"
    "Q how often c is expected among the candidates: k q with replacement, 1 - (1 - q)^T for distinct draws, T the\n"
    "number of draws that it took until k were distinct."
)


def run(section: Literal["loss", "sampler"]) -> str:
    """Returns the listing of a section of recipes."""
    if section == "sampler":
        return _listing(section, SAMPLER_LETTERS, SAMPLERS, [("samplers that draw", Drawing, ())])
    shared = [("every loss", Loss, ()), ("losses that take a sampler", SampledLoss, (Loss,))]
    return _listing(section, LOSS_LETTERS, LOSSES, shared)


def _listing(
    section: str,
    letters: str,
    choices: Sequence[type[Any]],
    shared: Sequence[tuple[str, type[Section], tuple[type[Section], ...]]],
) -> str:
    """Lists every choice of a recipe's section.

    Args:
        section: its name in the recipe.
        letters: what the letters in the formulas mean.
        choices: settings classes with `formula` and `paper`.
        shared: the choices that share options, the class that holds these, and the classes already listed.
    """
    blocks = [letters]
    for choice in choices:
        name = get_args(choice.model_fields["name"].annotation)[0]
        lines = [name, f"  {choice.formula}", f"  {choice.__doc__} {choice.paper}."]
        if issubclass(choice, Loss):
            lines.append(f"  {_traits(choice)}")
        told = {key for _, parent, _ in shared if issubclass(choice, parent) for key in parent.model_fields}
        own = {key: field for key, field in choice.model_fields.items() if key != "name" and key not in told}
        blocks.append("\n".join(lines + _options(section, own)))
    for whom, parent, before in shared:
        fields = {k: f for k, f in parent.model_fields.items() if not any(k in each.model_fields for each in before)}
        blocks.append("\n".join([f"options of {whom}", *_options(section, fields)]))
    blocks.append(f"Choose by {section}.name in the recipe, or --set {section}.name=… --set {section}.KEY=VALUE.")
    return "\n\n".join(blocks)


def _traits(loss: type[Loss]) -> str:
    score = "own scale, no temperature" if loss.own_scale else "logits: similarity / temperature"
    if loss.needs_cosine:
        score += "; needs the cosine"
    if loss.graded:
        source = "labels: the events' weights"
    else:
        source = "takes a sampler" if loss.samples else "no sampler: the whole catalogue"
    return f"({score}; {source})"


def _options(section: str, fields: dict[str, FieldInfo]) -> list[str]:
    width = max((len(key) for key in fields), default=0) + len(section) + 3
    return [
        f"    {f'{section}.{key}':<{width}}{_default(field)}{_allowed(field)}"
        + (f"  {field.description}" if field.description else "")
        for key, field in fields.items()
    ]


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.default
    if isinstance(value, bool):
        return str(value).lower()
    return "none" if value is None else f"{value}"


def _allowed(field: FieldInfo) -> str:
    """Returns the other allowed values, and the bounds of a number."""
    annotation = field.annotation
    members = get_args(annotation) if get_origin(annotation) is not Literal else (annotation,)
    words = [word for each in (annotation, *members) if get_origin(each) is Literal for word in get_args(each)]
    others = [str(word) for word in dict.fromkeys(words) if word != field.default]
    signs = {Ge: ("ge", ">="), Gt: ("gt", ">"), Le: ("le", "<="), Lt: ("lt", "<")}
    bounds = [
        f"{signs[type(rule)][1]} {getattr(rule, signs[type(rule)][0])}"
        for rule in field.metadata
        if type(rule) in signs
    ]
    parts = ([f"or {', '.join(others)}"] if others else []) + bounds
    return f" ({', '.join(parts)})" if parts else ""
