"""What a model must beat: popularity, item-kNN and EASE with settings chosen on validation, and which is strongest.

In: a data set. Out: rankers of held-out users, what they are called, and what `report.json` says of them.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from pipelines.dataset import Dataset
from pipelines.evaluation.blocks import Ranker
from pipelines.evaluation.cache import Cache
from pipelines.evaluation.choice import CHOSEN_BY, Choice, choose
from pipelines.evaluation.fits import Fits, Settings, ranker_of
from pipelines.evaluation.rankers import EASE, KNN, POPULARITY, RECENT, USERS_ALIKE
from pipelines.popularity import Counting


@dataclass(frozen=True)
class Baselines:
    """The baselines of a data set, fitted.

    Attributes:
        choice: their settings.
        rankers: name -> ranker.
        settings: name -> its settings; as text what a person calls it.
    """

    choice: Choice
    rankers: dict[str, Ranker]
    settings: dict[str, Settings]

    @property
    def strongest(self) -> str:
        """The name of the one that reached most on validation."""
        return self.choice.strongest

    def content(self) -> dict[str, Any]:
        """What `report.json` says of them under `baselines`."""
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
    """Every baseline that the data allow; settings and matrices are kept beside the data set.

    Args:
        data: the data set.
        splits: whose events they are fitted on, in the order of time.
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
