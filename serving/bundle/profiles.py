"""The profiles of known users: the request features, other than id and history, that the tower learnt them with.

The files: `query_profile_bytes.npy` (distinct profiles as JSON objects, concatenated), `_offsets` (where each begins,
and the end) and `_rows` (which of them each user has). All are mapped; users with equal profiles share one.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, overload

import numpy as np
import orjson
from numpy.typing import NDArray

from serving.bundle import arrays as files
from serving.bundle.manifest import FeatureSpec
from serving.bundle.request_features import check_features
from serving.errors import BundleError, RequestError

BLOCK = 1_024  # users whose profiles are written between two reports of progress


class Profiles(Sequence[dict[str, Any]]):
    """Row of a user to features by name, as a request would send them; missing values are left out.

    Args:
        text: the distinct profiles.
        offsets: [P + 1] where each begins, and the end.
        rows: [Q] the profile of each user, in 0..P - 1.
    """

    def __init__(self, text: NDArray[np.uint8], offsets: NDArray[np.int64], rows: NDArray[np.int32]) -> None:
        self._text, self._offsets, self._rows = text.data, offsets, rows

    @classmethod
    def open(cls, bundle: Path, count: int) -> "Profiles":
        """Maps the profiles of `count` users.

        Raises:
            BundleError: a file is missing, truncated, of another type, or does not fit the others.
        """
        text = files.open_array(bundle, files.PROFILE_BYTES, np.uint8, (None,))
        offsets = files.open_array(bundle, files.PROFILE_OFFSETS, np.int64, (None,))
        rows = files.open_array(bundle, files.PROFILE_ROWS, np.int32, (count,))
        if not len(offsets) or offsets[0] != 0 or offsets[-1] != len(text) or (np.diff(offsets) < 0).any():
            raise BundleError(f"{bundle / files.PROFILE_OFFSETS}: must rise from 0 to the {len(text)} bytes")
        if count and (rows.min() < 0 or rows.max() >= len(offsets) - 1):
            raise BundleError(f"{bundle / files.PROFILE_ROWS}: must lie in 0..{len(offsets) - 2}")
        return cls(text, offsets, rows)

    def refuse_wrong(self, specs: Sequence[FeatureSpec], path: Path) -> None:
        """Raises BundleError unless each distinct profile holds valid values of these features."""
        for number in range(len(self._offsets) - 1):
            try:
                check_features(specs, self._profile(number))
            except (ValueError, AttributeError, RequestError) as error:
                raise BundleError(f"{path}: profile {number}: {error}") from None

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, row: int) -> dict[str, Any]: ...
    @overload
    def __getitem__(self, row: slice) -> list[dict[str, Any]]: ...
    def __getitem__(self, row: int | slice) -> dict[str, Any] | list[dict[str, Any]]:
        if isinstance(row, slice):
            return [self._profile(number) for number in self._rows[row].tolist()]
        return self._profile(int(self._rows[row]))

    def _profile(self, number: int) -> dict[str, Any]:
        profile: dict[str, Any] = orjson.loads(self._text[self._offsets[number] : self._offsets[number + 1]])
        return profile


def write_profiles(
    directory: Path, profiles: Iterable[Mapping[str, Any]], advance: Callable[[float], None] = lambda _: None
) -> None:
    """Writes the profile of each user, in row order; `advance` gets the users of each block."""
    options = orjson.OPT_SORT_KEYS | orjson.OPT_SERIALIZE_NUMPY
    numbers: dict[bytes, int] = {}
    rows: list[int] = []
    remaining = iter(profiles)
    while block := list(islice(remaining, BLOCK)):
        rows += [numbers.setdefault(orjson.dumps(profile, option=options), len(numbers)) for profile in block]
        advance(len(block))
    np.save(directory / files.PROFILE_BYTES, np.frombuffer(b"".join(numbers), np.uint8))
    np.save(directory / files.PROFILE_OFFSETS, np.cumsum([0, *map(len, numbers)], dtype=np.int64))
    np.save(directory / files.PROFILE_ROWS, np.array(rows, np.int32))
