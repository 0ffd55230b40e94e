"""The protocol options of `towers report`, as a user writes them: checked, in words, and as times of the data set."""

import re
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from pipelines.dataset.dataset import Dataset
from pipelines.dataset.heldout import EARLIER, Window
from pipelines.dataset.popularity import TICKS_PER_S, has_windows, last_time
from pipelines.errors import DataError

RANKING = "Full ranking over the catalogue by dot product of stored vectors, "
MASKED, UNMASKED = "each user's training and validation items masked", "nothing masked"
METRICS = "; recall@k = hits / number of targets; NDCG@k with IDCG over min(k, targets); mean over users with a target."
SECONDS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Protocol:
    """The options.

    Attributes:
        repeats: items that a user took before stay candidates, and are targets if the user takes them again.
        reachable: leave out targets without a vector; False counts them as misses.
        gap: ``"7d"``: leave out test events until so long after the last known event; s, m, h, d or w.
        begin: an ISO date or time: leave out test events before it; without a zone, in that of the data set.
        end: likewise, test events from it on.
        users: ask a sample of this size; None asks all.
        seed: of the sample.
    """

    repeats: bool = False
    reachable: bool = False
    gap: str | None = None
    begin: str | None = None
    end: str | None = None
    users: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if self.users is not None and self.users < 1:
            raise DataError(f"--users {self.users}: must be at least 1")
        if self.seed < 0:
            raise DataError(f"--seed {self.seed}: must be at least 0")
        if self.seed and self.users is None:
            raise DataError(f"--seed {self.seed}: is of a sample of users; give --users, too")

    @property
    def text(self) -> str:
        """The method in a sentence."""
        return RANKING + (UNMASKED if self.repeats else MASKED) + METRICS

    @property
    def words(self) -> list[str]:
        """A sentence for each option that is not at its default."""
        texts = {
            "repeats": "Repeats count: items that a user took before stay candidates for every ranker, and are targets "
            "if the user takes them again. The settings of the baselines were chosen without repeats.",
            "reachable": "Targets without a vector are left out, not counted as misses.",
            "gap": f"Test events until {self.gap} after the last event before the test are left out.",
            "begin": f"Test events before {self.begin} are left out.",
            "end": f"Test events from {self.end} on are left out.",
            "users": f"A sample of {self.users:,} test users, drawn with seed {self.seed}." if self.users else "",
        }
        return [text for name, text in texts.items() if getattr(self, name)]

    def content(self) -> dict[str, Any]:
        """The `protocol_options` section of `report.json`."""
        return asdict(self) | {"words": self.words}

    @property
    def given(self) -> str:
        """The options that are not at their defaults, as a user writes them."""
        return self.written(*(each.name for each in fields(self) if getattr(self, each.name) != each.default))

    def after_gap(self, data: Dataset) -> int | None:
        """Returns the first tick after the gap, None without one.

        Raises:
            DataError: it is not a time span, or the data have no times.
        """
        if self.gap is None:
            return None
        parts = re.fullmatch(r"(\d+)([smhdw])", self.gap)
        if parts is None:
            raise DataError(
                f"--gap {self.gap}: not a time span; allowed is a whole number with s, m, h, d or w, like 7d"
            )
        self._refuse_untimed(data, "gap")
        per_s = TICKS_PER_S[str(data.manifest.time_unit)]
        return last_known(data) + int(parts[1]) * SECONDS[parts[2]] * per_s + 1

    def window(self, data: Dataset) -> Window:
        """Returns the times from `begin` to `end`.

        Raises:
            DataError: they are no times or in the wrong order, or the data have no times.
        """
        low, high = self._tick("begin", data), self._tick("end", data)
        if low is not None and high is not None and low >= high:
            raise DataError(f"{self.written('begin', 'end')}: --from must be before --until")
        return low, high

    def _tick(self, name: str, data: Dataset) -> int | None:
        text = getattr(self, name)
        if text is None:
            return None
        self._refuse_untimed(data, name)
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            raise DataError(
                f"{self.written(name)}: not an ISO date or time; allowed is 2026-11-01 or 2026-11-01T12:30+01:00"
            ) from None
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=ZoneInfo(data.manifest.config.time_zone))
        microseconds = (moment - EPOCH) // timedelta(microseconds=1)
        # Rounded up: a tick is on one side of the moment.
        return -(-microseconds * TICKS_PER_S[str(data.manifest.time_unit)] // 1_000_000)

    def _refuse_untimed(self, data: Dataset, name: str) -> None:
        if not has_windows(data):
            why = "are not timed" if not data.manifest.timed else "have an order, but no clock"
            raise DataError(
                f"{self.written(name)}: the events of {data.path} {why} (split {data.manifest.split.kind}); "
                "prepare them with a time column and a split by time"
            )

    def written(self, *names: str) -> str:
        """Some options as a user writes them, without those at their defaults."""
        flags = {"begin": "--from", "end": "--until", "reachable": "--reachable-only"}
        values = [(flags.get(name, f"--{name}"), getattr(self, name)) for name in names]
        given = [(flag, value) for flag, value in values if value is not None and value is not False]
        return " ".join(flag if value is True else f"{flag} {value}" for flag, value in given)


def last_known(data: Dataset) -> int:
    """Returns the time of the last event before the test, in ticks.

    Raises:
        DataError: there is none.
    """
    last = last_time([data.events(name) for name in EARLIER["test"]])
    if last is None:
        raise DataError(f"{data.path}: no event before the test")
    return last
