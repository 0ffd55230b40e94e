"""`towers bundles`: lists the bundles of a root and chooses which of them answers.

Changes the root's `active.json` (`serving.bundle.versions`), which running services follow, and prints the new state in
one line on stderr. Before a bundle is named there, it is opened, verified and probed with real searches.
"""

import shlex
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from rich.table import Column, Table
from rich.text import Text

from pipelines.bundles.publish import StoredRoot, described, stored_root
from pipelines.bundles.requirement import gate
from pipelines.console import phases, results, say
from pipelines.service.verify import PROBE, VERIFY, probed, verify
from serving.bundle.active import Active
from serving.bundle.manifest import read_manifest
from serving.bundle.versions import Versions
from serving.client.address import without_secrets

Root = Path | str


def show(root: Root) -> None:
    """Prints the bundles of a root as a table, newest first; names the next command if none of them is active.

    Args:
        root: the directory of bundles, or its URL in a store. Likewise below.

    Raises:
        BundleError: the root does not exist, or its `active.json` is damaged.
    """
    with _opened(root) as opened:
        infos, there = opened.versions.list(), str(opened.versions.root)
    shown = without_secrets(root.rstrip("/")) if isinstance(root, str) else str(root)
    # Whole also on a narrow terminal: `activate` wants the name.
    names = (Column(head, overflow="fold") for head in ("bundle", "state", "model"))
    table = Table(*names, "created", Column("items", justify="right"), "problem")
    for info in infos:
        created = "" if info.created_at is None else info.created_at.strftime("%Y-%m-%d %H:%M:%S %Z")
        items = "" if info.items is None else f"{info.items:,}"
        # A bad name may hold bytes that are not text.
        name = info.name.encode(errors="backslashreplace").decode()
        # Of a store `there` is a temporary directory.
        problem = (info.problem or "").replace(there, shown)
        cells = (name, info.state, info.model_version or "", created, items, problem)
        table.add_row(*(Text(cell) for cell in cells))
    results().print(table)
    if not infos:
        say(f"no bundle in {shown}; `towers export --run RUN --out {shlex.quote(f'{shown}/NAME')}` makes one")
    elif not any(info.state == "active" for info in infos):
        say(f"none of them is active; name one: towers bundles activate NAME --root {shlex.quote(shown)}")


def activate(
    root: Root, name: str, override: str | None = None, *, before_write: Callable[[], object] = lambda: None
) -> Active:
    """Makes the services of a root answer from another bundle.

    Args:
        root: see `show`.
        name: of the bundle.
        override: why it answers although the root's gate refuses it.
        before_write: called once the bundle is verified and probed, and about to be named.

    Raises:
        BundleError: the bundle does not exist, is damaged, or fails a real search.
        GateError: the root has a gate, and the bundle no valid blessing.
    """
    with _opened(root) as opened, opened.choosing("activate", name, override) as told:
        before_write()
        active = opened.versions.activate(name)
    before = f", after {active.previous[0]}" if active.previous else ""
    say(f"active: {told}{before}")
    return active


def rollback(root: Root, override: str | None = None) -> str:
    """Makes the services of a root answer from the previously active bundle again; that needs no blessing.

    Args:
        root: see `show`.
        override: why it answers although it was written over since it was active, which the root's gate refuses.

    Raises:
        BundleError: there is no previous bundle, or it is damaged or fails a real search.
        GateError: the root has a gate, and the bundle is not the one that was active.
    """
    with _opened(root) as opened:
        now = opened.versions.read()
        name = opened.versions.before(now)
        with opened.choosing("rollback", name, override) as told:
            opened.versions.rollback(expected=name)
    say(f"active: {told}, back from {now.active}")
    return name


def canary(root: Root, name: str, share: float, override: str | None = None) -> Active:
    """Makes the services of a root answer a share of the users from another bundle.

    Args:
        root: see `show`.
        name: of the other bundle.
        share: of the users, in (0, 1].
        override: as for `activate`.

    Raises:
        BundleError: as `activate`, or the share is wrong, or the bundle is already active.
        GateError: as `activate`.
    """
    with _opened(root) as opened:
        opened.versions.beside_canary(name, share)  # before the bundle is probed, which takes seconds
        with opened.choosing("canary", name, override) as told:
            active = opened.versions.set_canary(name, share)
    say(f"canary: {told} for {share:.2%} of the users, next to {active.active}")
    return active


def clear_canary(root: Root) -> Active:
    """Makes the services of a root answer every user from the active bundle.

    Raises:
        BundleError: no bundle is active.
    """
    with _opened(root) as opened:
        active = opened.versions.clear_canary()
    say(f"no canary: {active.active} answers every user")
    return active


@dataclass(frozen=True)
class _LocalRoot:
    versions: Versions

    @contextmanager
    def choosing(self, action: str, name: str, override: str | None) -> Iterator[str]:
        """Yields a short description of a bundle that the gate passes, and that is verified and probed."""
        with gate(self.versions, name, action, override) as write_down:
            path = self.versions.path(name)
            manifest = read_manifest(path)
            self.versions.refuse_unwritable()
            phases(action, VERIFY, PROBE)
            verify(path)
            probed(path)
            write_down()
            yield described(name, manifest)


def _opened(root: Root) -> AbstractContextManager[_LocalRoot | StoredRoot]:
    return stored_root(root) if isinstance(root, str) else nullcontext(_LocalRoot(Versions(root)))
