"""`towers bundles`: lists the bundles of a root and chooses which of them answers.

Changes the root's `active.json` (`serving.bundle.versions`), which running services follow, and prints the new state in
one line on stderr. Before a bundle is named there, it is opened, verified and probed with real searches.
"""

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from pipelines.bundles.requirement import gate
from pipelines.console import amount, phases, say
from pipelines.service.verify import PROBE, VERIFY, probed, verify
from serving.bundle.active import Active, VersionInfo
from serving.bundle.manifest import Manifest, read_manifest
from serving.bundle.versions import Versions


def show(root: Path) -> None:
    """Prints the bundles of a root as a table, newest first.

    Raises:
        BundleError: the root does not exist, or its `active.json` is damaged.
    """
    show_table(Versions(root).list(), root)


def show_table(infos: Sequence[VersionInfo], root: Path | str) -> None:
    """Prints bundles as a table, in their order; names the next command if none of them is active.

    Args:
        infos: the bundles.
        root: the path or URL of their root.
    """
    table = Table("bundle", "state", "model", "created", Column("items", justify="right"), "problem")
    for info in infos:
        created = "" if info.created_at is None else info.created_at.strftime("%Y-%m-%d %H:%M:%S %Z")
        items = "" if info.items is None else f"{info.items:,}"
        # A bad name may hold bytes that are not text.
        name = info.name.encode(errors="backslashreplace").decode()
        cells = (name, info.state, info.model_version or "", created, items, info.problem or "")
        table.add_row(*(Text(cell) for cell in cells))
    Console().print(table)
    if not any(info.state == "active" for info in infos):
        say(f"none of them is active; name one: towers bundles activate NAME --root {root}")


def activate(root: Path, name: str, override: str | None = None) -> Active:
    """Makes the services of a root answer from another bundle.

    Args:
        root: the directory of bundles.
        name: of the bundle.
        override: why it answers although the root's gate refuses it.

    Raises:
        BundleError: the bundle does not exist, is damaged, or fails a real search.
        GateError: the root has a gate, and the bundle no valid blessing.
    """
    versions = Versions(root)
    with gate(versions, name, "activate", override) as write_down:
        told = _checked(versions, "activate", name)
        write_down()
        active = versions.activate(name)
    before = f", after {active.previous[0]}" if active.previous else ""
    say(f"active: {told}{before}")
    return active


def rollback(root: Path, override: str | None = None) -> str:
    """Makes the services of a root answer from the previously active bundle again; that needs no blessing.

    Args:
        root: the directory of bundles.
        override: why it answers although it was written over since it was active, which the root's gate refuses.

    Raises:
        BundleError: there is no previous bundle, or it is damaged or fails a real search.
        GateError: the root has a gate, and the bundle is not the one that was active.
    """
    versions = Versions(root)
    now = versions.read()
    name = versions.before(now)
    with gate(versions, name, "rollback", override) as write_down:
        told = _checked(versions, "rollback", name)
        write_down()
        versions.rollback(expected=name)
    say(f"active: {told}, back from {now.active}")
    return name


def canary(root: Path, name: str, share: float, override: str | None = None) -> Active:
    """Makes the services of a root answer a share of the users from another bundle.

    Args:
        root: the directory of bundles.
        name: of the other bundle.
        share: of the users, in (0, 1].
        override: as for `activate`.

    Raises:
        BundleError: as `activate`, or the share is wrong, or the bundle is already active.
        GateError: as `activate`.
    """
    versions = Versions(root)
    with gate(versions, name, "canary", override) as write_down:
        told = _checked(versions, "canary", name)
        write_down()
        active = versions.set_canary(name, share)
    say(f"canary: {told} for {share:.2%} of the users, beside {active.active}")
    return active


def clear_canary(root: Path) -> Active:
    """Makes the services of a root answer every user from the active bundle.

    Raises:
        BundleError: no bundle is active.
    """
    active = Versions(root).clear_canary()
    say(f"no canary: {active.active} answers every user")
    return active


def _checked(versions: Versions, command: str, name: str) -> str:
    """Verifies and probes a bundle; returns a short description."""
    path = versions.path(name)
    manifest = read_manifest(path)
    phases(command, VERIFY, PROBE)
    verify(path)
    probed(path)
    return described(name, manifest)


def described(name: str, manifest: Manifest) -> str:
    """Describes a bundle in a few words."""
    return f"{name} (model {manifest.model_version}, {amount(manifest.items, 'items')})"
