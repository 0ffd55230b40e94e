"""`towers forget`: removes one user from a state directory, bundles and data sets, and says what to train again.

Prints a line or two per place on stdout, with counts and without ids. The same command finishes what was interrupted.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from pipelines.console import is_text, phases, progress, say
from pipelines.dataset.dataset import Dataset
from pipelines.dataset.manifest import MANIFEST as DATASET
from pipelines.errors import DataError
from pipelines.forget.bundle import forget_in_bundle, other_tower
from pipelines.forget.dataset import forget_in_dataset
from pipelines.forget.left_overs import refuse_left_overs
from pipelines.forget.run import saw_user
from pipelines.forget.store import DOWNLOAD, stored_bundles
from pipelines.service.state import open_journal
from pipelines.service.verify import VERIFY, verify_each
from serving.bundle.active import ACTIVE
from serving.bundle.manifest import MANIFEST, not_a_bundle
from serving.bundle.versions import CANDIDATE, Versions
from serving.errors import BundleError
from serving.files.database_url import DatabaseUrl
from serving.files.staging import put_back, remove_left_overs
from serving.service.store import MissingError, StoreError

AGAIN = "its model was trained with the user: train again"
PLACES = "look and remove"
Place = Path | DatabaseUrl | str  # a str is the URL of a bundle in a store


def run(
    user: str,
    *,
    state: Path | DatabaseUrl | None = None,
    bundles: Sequence[Path | str] = (),
    datasets: Sequence[Path] = (),
    runs: Sequence[Path] = (),
    dry_run: bool = False,
) -> dict[Place, dict[str, int]]:
    """Forgets a user.

    Args:
        user: the user's id.
        state: a service's state directory or database; the service may run.
        bundles: bundles, and directories or URLs of stores of bundles, of which all are searched; services may serve
            them. Those of a store are copied here for it.
        datasets: data sets.
        runs: runs that may have seen the user; nothing is removed from them.
        dry_run: only count. What a killed attempt had moved aside is put back all the same, and what it had begun to
            replace in a store is replaced.

    Returns:
        What was found in each place that held the user.

    Raises:
        DataError: no place is named, one is not what it should be, or beside one lies what another machine or container
            writes or left; nothing was removed.
        BundleError: likewise for a bundle, of which every file is read before. Or another command has changed a
            bundle of a store meanwhile.
        StoreError: a store does not answer.
    """
    if state is None and not (bundles or datasets or runs):
        raise DataError("name at least one place: --state, --bundle, --dataset or --run")
    if not is_text(user):
        raise DataError(f"--user {user!r}: its bytes are no UTF-8, so it is nobody's id")
    if not user:
        raise DataError("--user '': is empty, so it is nobody's id")
    urls = [each for each in bundles if isinstance(each, str)]
    local = [_target(each) for each in bundles if isinstance(each, Path)]
    datasets = [_target(each) for each in datasets]
    folders: list[tuple[Path, str | None]] = [
        (path.parent, path.name) for path in map(Path.absolute, (*local, *datasets))
    ]
    folders += [(root, None) for root in local]
    for folder, name in folders:
        put_back(folder, name)
        refuse_left_overs(folder, name)
    every = list(dict.fromkeys(path for each in local for path in _bundles(each)))
    # Those that links lead to lie elsewhere.
    folders += [(path.parent, path.name) for path in every if path.parent not in local]
    opened = [_with_others(Dataset.open(path), user) for path in datasets]
    saw = {run: saw_user(run, user, opened) for run in runs}

    removal = _Removal(user, dry_run=dry_run)
    phases("forget", *(DOWNLOAD for _ in urls), *([VERIFY] if every else []), PLACES)
    with ExitStack() as copies:
        with _nothing_removed():
            stores = copies.enter_context(stored_bundles(urls)) if urls else []
            if every:
                for _ in verify_each(every):
                    pass
        searched: list[tuple[Place, Path, Callable[[], None] | None]] = [(path, path, None) for path in every]
        searched += [
            (store.place(name), path, partial(store.replace, name))
            for store in stores
            for name, path in store.bundles.items()
        ]
        count = (state is not None) + len(searched) + len(opened) + len(saw)
        with progress(PLACES, total=count, unit="places") as advance:
            if state is not None:
                removal.from_state(state)
                advance()
            for folder, name in folders if not dry_run else ():
                remove_left_overs(folder, name)  # a killed attempt leaves a whole copy with the user
            for place, path, publish in searched:
                removal.from_bundle(place, path, publish)
                advance()
            # Those that a command has made meanwhile of bundles with the user; later it finds that they were replaced.
            done = removal.searched
            while later := [path for each in local for path in _bundles(each, again=True) if path not in done]:
                for path in later:
                    removal.from_bundle(path, path)
            for data in opened:
                removal.from_dataset(data)
                advance()
            for run, known in saw.items():
                removal.of_run(run, known)
                advance()
    if not removal.found and None not in saw.values():
        say("this user is in none of these places; nothing was changed")
    return removal.found


class _Removal:
    """Removes a user from place after place, or counts what it would remove; tells what it finds in each.

    Attributes:
        found: what was found in each place that held the user.
        searched: the bundles that were there to be searched.
    """

    def __init__(self, user: str, *, dry_run: bool) -> None:
        self._user, self._dry_run = user, dry_run
        self.found: dict[Place, dict[str, int]] = {}
        self.searched = set[Path]()

    def from_state(self, state: Path | DatabaseUrl) -> None:
        with open_journal(state) as journal:
            self._tell(state, journal.forget(self._user, dry_run=self._dry_run))

    def from_bundle(self, place: Place, path: Path, publish: Callable[[], None] | None = None) -> None:
        """Calls `publish` if it has changed the bundle at `path`, which may be a copy of `place`."""
        with _unless_removed(path, MANIFEST):
            counts = forget_in_bundle(path, self._user, dry_run=self._dry_run)
            if publish is not None and any(counts.values()) and not self._dry_run:
                publish()
            self._tell(place, counts, f"; {AGAIN}")
            if other_tower(path):
                why = "not written by `towers export`, so not searched"
                print(f"{place}: its towers were {why}; they may hold the user's id and row")  # noqa: T201
            self.searched.add(path)

    def from_dataset(self, data: Dataset) -> None:
        was = f"; runs on data set {data.manifest.fingerprint[:12]} saw the user: train again"
        with _unless_removed(data.path, DATASET):
            counts = forget_in_dataset(data.path, self._user, dry_run=self._dry_run)
            self._tell(data.path, counts, was if counts["users"] else "")  # no run sees bad rows

    def of_run(self, run: Path, saw: bool | None) -> None:
        """Only says whether it saw the user: a run cannot be changed."""
        if saw:
            self.found[run] = {}
            print(f"{run}: saw the user; train again and remove it")  # noqa: T201
        elif saw is None:
            print(f"{run}: may have seen the user: its vocabularies and the data sets given do not tell")  # noqa: T201

    def _tell(self, place: Place, counts: dict[str, int], then: str = "") -> None:
        if counts := {what: count for what, count in counts.items() if count}:
            self.found[place] = counts
            listed = ", ".join(f"{what} {count:,}" for what, count in counts.items())
            print(f"{place}: {'would remove' if self._dry_run else 'removed'} {listed}{then}")  # noqa: T201


@contextmanager
def _unless_removed(path: Path, whole: str) -> Iterator[None]:
    """Goes on where another command has removed what was to be searched, or does: other places still hold the user.

    The file `whole`, without which a directory is none, was there when the command began.
    """
    try:
        yield
    except (BundleError, DataError, OSError):
        if (path / whole).exists():
            raise
        say(f"{path}: removed meanwhile, so there is nothing to search")


def _bundles(path: Path, *, again: bool = False) -> list[Path]:
    """The bundle at a path, or all bundles of a root, also those that are not active or not published.

    Args:
        path: the bundle, or the root.
        again: it was asked before; what is missing now was removed meanwhile.

    Raises:
        BundleError: there is none, or one that answers is missing.
        DataError: another machine or container may write one, or left one.
    """
    if (path / MANIFEST).exists():
        found = [path]
    else:
        found = []
        for info in Versions(path).list() if path.is_dir() else ():
            bundle = _target(path / info.name)
            put_back(bundle.parent, bundle.name)
            refuse_left_overs(bundle.parent, bundle.name)
            if (bundle / MANIFEST if again else bundle).exists():  # one that is being copied has none yet
                found.append(bundle)
            elif info.state in ("active", "canary") and not again:  # earlier ones may have been removed since
                todo = "restore it or choose another one: towers bundles"
                raise BundleError(f"{bundle}: missing, but {path / ACTIVE} names it as {info.state}; {todo}")
        found += [file.parent for file in path.glob(f".*{CANDIDATE}/{MANIFEST}")]
    if not (found or again):
        raise not_a_bundle(path)
    return found


def _target(path: Path) -> Path:
    """Where a link leads: it would be replaced by a copy without the user, and its target would keep the user."""
    return path.resolve() if path.is_symlink() else path


@contextmanager
def _nothing_removed() -> Iterator[None]:
    """Adds to the error of a bundle that cannot be searched what was done, and what to do."""
    try:
        yield
    except BundleError as error:
        if isinstance(error, StoreError) and not isinstance(error, MissingError):
            raise  # it does not answer; that says nothing of a bundle
        todo = "restore or remove this bundle, then give the command again"
        raise BundleError(f"{error}; nothing was removed: {todo}") from None


def _with_others(data: Dataset, user: str) -> Dataset:
    if data.users.height == 1 and data.users["user_id"][0] == user:
        raise DataError(f"{data.path}: holds no other user; remove the data set")
    return data
