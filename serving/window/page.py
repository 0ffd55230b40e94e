"""Renders the window: reads the form, asks the bundles as `POST /recall` does, and fills the templates in.

Everything that comes from a request or a bundle is escaped by the templates.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from serving.bundle.reader import Bundle
from serving.bundle.vocabulary import known_values
from serving.catalogue.times import EXAMPLE
from serving.errors import RequestError
from serving.recall.query import RecallQuery
from serving.recall.recaller import Recaller
from serving.search.condition_limits import OPERATORS
from serving.service.service import Service
from serving.window.answer import answered, details
from serving.window.differences import differences
from serving.window.environment import environment
from serving.window.form import MOST_CHARACTERS, Form, in_form
from serving.window.items import MOST_FOUND, ShownItem, found_items, found_users, known_history, shown_ids
from serving.window.wording import Wording

MOST_HISTORY = 100  # items of a stored history that are shown, and with which editing it begins
EXAMPLES = 5
MOST_VALUES, LONGEST_VALUE = 100, 120  # offered for a feature, and characters of one
RUNNING = ("towers-recall", "tensorflow", "scann", "scann-core", "numpy")


@dataclass(frozen=True)
class Beside:
    """What `towers look` shows beside the bundles of its service.

    Attributes:
        second: another bundle to compare with.
        held_out: user id -> ids of the items that the user took in the test.
    """

    second: Recaller | None = None
    held_out: Callable[[str], Collection[str]] | None = None


@dataclass(frozen=True)
class Choice:
    """A bundle that can be asked, with what it is here: active, canary, A or B."""

    role: str
    recaller: Recaller
    name: str

    @property
    def label(self) -> str:
        """The role and the name."""
        return f"{self.role}: {self.name}"


class Page:
    """The page over the bundles that answer now.

    Args:
        service: picks the bundles, and holds the limits.
        query_of: makes the query of a request's keys, or raises RequestError.
        beside: what else is shown.
    """

    def __init__(self, service: Service, query_of: Callable[[Mapping[str, Any]], RecallQuery], beside: Beside) -> None:
        self._service, self._query_of, self._beside = service, query_of, beside

    def render(self, form: Form, unready: str) -> str:
        """The HTML; `form.errors` then holds what is wrong with the request. Blocks: not for the event loop.

        Args:
            form: the request.
            unready: why the service is not ready, or "".
        """
        choices = self._choices()
        if form["add"] or form["remove"]:
            form.replace(similar="", find_item="")  # a change of the history asks for the user again
        _edit_history(form, self._chosen(form, choices).recaller)
        chosen = self._chosen(form, choices)  # without a history there is no user, who may be the canary's
        recaller = chosen.recaller
        items, columns = recaller.catalogue.snapshot(), recaller.catalogue.kinds
        features = in_form(recaller.bundle.manifest.query_features)
        history = _history(form, recaller)
        column_options = [("", "no column"), *((name, name) for name in sorted(columns))]
        content = self._answers(form, choices, chosen)
        template = environment().get_template("window.html.j2")
        return template.render(
            form=form,
            choices=choices,
            chosen=chosen,
            features=features,
            known={each.name: _known_values(recaller.bundle, each.name) for each in features},
            reads_times=recaller.bundle.manifest.query_feature("history_times") is not None,
            time_columns=[*recaller.catalogue.times],
            time_example=EXAMPLE,
            column_options=column_options,
            bundle_options=self._bundle_options(choices),
            operators=[("", "eq"), *((name, name) for name in OPERATORS if name != "eq")],
            open=_open(form),
            found_users=found_users(recaller, form["find_user"]) if form["find_user"] else None,
            found_items=found_items(items, form["find_item"]) if form["find_item"] else None,
            most_found=MOST_FOUND,
            examples=recaller.bundle.query_names[:EXAMPLES],
            history=shown_ids(items, history[-MOST_HISTORY:])[::-1],
            history_length=len(history),
            unready=unready,
            versions=_versions(),
            refused=self._service.refused_for_callers,
            keyed=self._service.settings.keys is not None,
            **content,
        )

    def _choices(self) -> dict[str, Choice]:
        answering = self._service.active_bundles.answering
        second = self._beside.second
        if second is not None:
            found = {"A": answering["active"].opened, "B": second}
        else:
            found = {role: each.opened for role, each in answering.items()}
        names = distinct_names([each.bundle.path for each in found.values()])
        return {role: Choice(role, each, name) for (role, each), name in zip(found.items(), names, strict=True)}

    def _bundle_options(self, choices: Mapping[str, Choice]) -> list[tuple[str, str]]:
        """The values and texts of the field that chooses a bundle; "" is the default."""
        first, *others = [(role, each.label) for role, each in choices.items()]
        if self._beside.second is not None:
            return [("", first[1]), *others]
        return [("", "as the service picks"), first, *others]

    def _chosen(self, form: Form, choices: Mapping[str, Choice]) -> Choice:
        if form["bundle"] and form["bundle"] not in choices:
            # One bundle: there is no field to choose it.
            form.errors["bundle" if len(choices) > 1 else ""] = (
                f"bundle: no such bundle; there are {', '.join(choices)}"
            )
        picked = self._service.pick(None if form["similar"] or form.without_history else form["user"])
        default = next((each for each in choices.values() if each.recaller is picked), next(iter(choices.values())))
        return choices.get(form["bundle"], default)

    def _answers(self, form: Form, choices: Mapping[str, Choice], chosen: Choice) -> dict[str, Any]:
        """The answer of the chosen bundle and that of the other one; empty if nothing is asked, or wrongly.

        `unanswered` says of the other bundle why the query does not fit it.
        """
        recaller, catalogue = chosen.recaller, chosen.recaller.catalogue
        if not form.asks:
            return {"answers": []}
        content = form.request(recaller.bundle.manifest.query_features, catalogue.kinds, catalogue.times)
        if form.errors:
            return {"answers": []}
        others = [] if form["alone"] else [each for each in choices.values() if each is not chosen]
        held_out = self._beside.held_out(form["user"]) if self._beside.held_out and form["user"] else ()
        try:
            query = self._query_of(content)
            first = answered(recaller, query, chosen.role, held_out)
            told = details(first.inquiry, form["item"])
        except RequestError as error:
            form.refuse(error)
            return {"answers": []}
        answers, unanswered = [first], dict[str, str]()
        for each in others:
            try:
                answers.append(answered(each.recaller, query, each.role, held_out))
            except RequestError as error:
                unanswered[each.role] = error.message
        named: dict[str, ShownItem] = {}
        asked = {form["similar"]} if form["similar"] else set[str]()
        # The chosen bundle's titles come last, over those of the other one.
        for answer, ids in [*((each, each.ids) for each in answers[1:]), (first, first.ids | told.ids | asked)]:
            named |= {item.id: item for item in shown_ids(answer.inquiry.items, [*ids])}
        return {
            "answers": answers,
            "unanswered": unanswered,
            "wording": Wording(query, catalogue.times),
            "details": told,
            "named": named,
            "differences": differences(first.inquiry, answers[1].inquiry) if len(answers) > 1 else None,
        }


def distinct_names(paths: Sequence[Path]) -> list[str]:
    """The shortest ends of paths, in whole names, that tell them apart; equal paths have equal ends."""
    longest = max(len(path.parts) for path in paths)
    candidates = ([Path(*path.parts[-length:]) for path in paths] for length in range(1, longest + 1))
    return [str(end) for end in next(ends for ends in candidates if len({*ends}) == len({*paths}))]


def _known_values(bundle: Bundle, feature: str) -> list[str]:
    """The values that the form offers for a feature."""
    return [value for value in known_values(bundle, feature, MOST_VALUES) if len(value) <= LONGEST_VALUE]


def _history(form: Form, recaller: Recaller) -> list[str]:
    """The history of the form; without one the service takes what it knows of the user, unless told to leave it."""
    if form.without_history:
        return []
    return form.lines("history") or (known_history(recaller, form["user"]) if form["user"] else [])


def _edit_history(form: Form, recaller: Recaller) -> None:
    """Writes into the form what adding and removing make of the history."""
    added, removed = form["add"], form["remove"]
    if not added and not removed:
        return
    before = _history(form, recaller)[-MOST_HISTORY:]
    history = [each for each in before if each != removed] + ([added] if added else [])
    # The newest: an address holds no more, beside the rest of the form.
    while len(history) > 1 and len(urlencode({"history": "\r\n".join(history)})) > MOST_CHARACTERS // 2:
        del history[0]
    # An empty history alone would bring back what the service knows of the user.
    form.replace(history="\n".join(history), stored="" if history else "leave", add="", remove="")


def _open(form: Form) -> dict[str, bool]:
    """Which parts of the form are unfolded: those in use."""
    fields = {
        "filters": ("column", "op", "value", "filter", "exclude", "diversity", "most"),
        "search": ("find_user", "find_item", "item", "similar"),
    }
    return {part: any(form[name] or name in form.errors for name in names) for part, names in fields.items()} | {
        "features": form.has_features
    }


@cache
def _versions() -> dict[str, str]:
    """The versions of what runs, apart from Python; ScaNN is not on every platform."""
    found = {}
    for name in RUNNING:
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found
