"""Fits the baselines a model must beat: popularity, item-kNN and EASE, with settings chosen on validation."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from pipelines.dataset.dataset import Dataset
from pipelines.dataset.popularity import Counting
from pipelines.rankers.cache import Cache
from pipelines.rankers.choice import CHOSEN_BY, Choice, choose
from pipelines.rankers.evaluate import Ranker
from pipelines.rankers.fits import Fits, Settings, ranker_of
from pipelines.rankers.ranker import EASE, KNN, POPULARITY, RECENT, USERS_ALIKE


@dataclass(frozen=True)
class Baselines:
    """The fitted baselines of a data set.

    Attributes:
        choice: their chosen settings.
        rankers: name -> ranker.
        settings: name -> its settings; `str` gives the display name.
    """

    choice: Choice
    rankers: dict[str, Ranker]
    settings: dict[str, Settings]

    def content(self) -> dict[str, Any]:
        """The `baselines` section of `report.json`."""
        return {
            name: {
                "title": str(self.settings[name]),
                "settings": asdict(self.settings[name]),
                "validation": {CHOSEN_BY: self.choice.validation[name]} if name in self.choice.validation else {},
            }
            for name in self.rankers
        } | {
            "left_out": self.choice.left_out,
            "fixed": self.choice.fixed,
            "validation_users": self.choice.users,
        }


def baselines_of(data: Dataset, splits: Sequence[str], k: int) -> Baselines:
    """Fits every baseline that the data allow; settings and matrices are cached beside the data set.

    Args:
        data: the data set.
        splits: the splits they are fitted on, in time order.
        k: length of the lists.
    """
    choice, fits = choose(data), Fits(data, splits, cache=Cache.beside(data.path))
    wanted = {
        POPULARITY: Counting(),
        USERS_ALIKE: Counting(users_alike=True),
        RECENT: choice.recent,
        KNN: choice.item_knn,
        EASE: choice.ease,
    }
    settings = {name: each for name, each in wanted.items() if each is not None}
    return Baselines(choice, {name: ranker_of(fits.of(each), k) for name, each in settings.items()}, settings)
