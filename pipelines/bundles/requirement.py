"""The gate of a root of bundles: `gate.toml` names the rules by which a bundle must be blessed before it answers.

`gate.log` beside it, to which lines are only added, keeps who set or removed the gate, what answered since, and who
overrode the gate, and why.
"""

import getpass
import json
import os
import shlex
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import tomli_w
from pydantic import ValidationError

from pipelines.bundles.blessing import AGAIN, Record, Sha256, valid_blessing
from pipelines.console import say
from pipelines.errors import DataError, GateError
from serving.bundle.digest import bundle_digest
from serving.bundle.versions import Versions
from serving.errors import BundleError
from serving.files.lock import exclusive
from serving.files.staging import flush, staged

GATE, LOG, PUBLISH = "gate.toml", "gate.log", "publish"


class Requirement(Record):
    """The content of `gate.toml`.

    Attributes:
        gate: the only value; without a gate there is no file.
        rules: SHA-256 of the file of rules.
        file: name of that file, for people.
    """

    gate: Literal["required"]
    rules: Sha256
    file: str


def require(root: Path, rules: str, file: str) -> None:
    """From now on a bundle of the root must be blessed by these rules before it answers.

    Args:
        root: the directory of bundles.
        rules: SHA-256 of the file of rules.
        file: its name.

    Raises:
        BundleError: there is no such directory.
    """
    _refuse_no_root(root)
    with staged(root / GATE, overwrite=True) as staging:
        text = tomli_w.dumps(Requirement(gate="required", rules=rules, file=file).model_dump())
        staging.write_text(text, encoding="utf-8")
        _log(root, "gate set", file=file, rules=rules, answered=_answered(Versions(root)))
    say(f"gate: {root} activates only what passes {file} ({rules[:12]})")


def refuse_own_file(rules: Path, root: Path) -> None:
    """Refuses a file of rules that the gate of the root would replace.

    Raises:
        DataError: it has the place of `gate.toml`.
    """
    if rules.resolve() == (root / GATE).resolve():
        raise DataError(f"{rules}: the root keeps there which rules it requires; give the rules another name")


def refuse_other_rules(rules: Path, digest: str, root: Path) -> None:
    """Refuses a file of rules, with this SHA-256, whose blessing does not let a bundle answer in the root.

    Raises:
        DataError: the root requires other rules, or its `gate.toml` is damaged.
    """
    required = _requirement(root)
    if required is not None and required.rules != digest:
        words = shlex.join(["towers", "bundles", "gate", str(rules), "--root", str(root)])
        raise DataError(
            f"{rules}: not the rules that {root} requires ({digest[:12]}; those are {required.file}, "
            f"{required.rules[:12]}); name them, or `{words}`"
        )


def unrequire(root: Path, reason: str) -> None:
    """Removes the gate of a root.

    Raises:
        BundleError: there is no such directory.
        DataError: it has no gate, or the reason is empty.
    """
    _refuse_no_root(root)
    if not (root / GATE).exists():
        raise DataError(f"{root}: has no gate to remove")
    _log(root, "gate removed", reason=_given(reason, "--off"))
    (root / GATE).unlink()
    say(f"no gate: {root} activates every bundle that answers")


@contextmanager
def gate(versions: Versions, name: str, action: str, override: str | None) -> Iterator[Callable[[], None]]:
    """Refuses a bundle without a valid blessing where the root requires one; no other command may choose meanwhile.

    Args:
        versions: the root.
        name: the bundle.
        action: what becomes of it, for the log: "activate", "canary", "publish", or "rollback", which needs no
            blessing but a bundle that answered before, as it is now.
        override: the reason why this bundle answers although the gate refuses it.

    Yields:
        What writes the choice down, to be called just before the change.

    Raises:
        GateError: it has no valid blessing, or never answered, and there is no override.
        BundleError: its manifest is damaged.
        DataError: `gate.toml` is damaged, or the reason is empty.
        BusyError: another process is choosing a bundle of this root.
    """
    reason = None if override is None else _given(override, "--override")
    required = _requirement(versions.root)
    if required is None:
        yield lambda: None
        return
    with exclusive(versions.root, f"{versions.root}: another command is choosing its bundle; try again"):
        refused = _unknown(versions, name) if action == "rollback" else _refusal(versions, name, required)
        if refused is not None and reason is None:
            raise GateError(f'{refused}; or say why it must answer all the same: --override "REASON"')
        told = {"bundle": name, "digest": bundle_digest(versions.path(name))}
        if refused is None:
            yield lambda: _log(versions.root, action, **told)
        else:
            yield lambda: _log(versions.root, f"{action} by override", reason=reason, **told, refused=refused)
            say(f"override: {name} answers although the gate refuses it; {versions.root / LOG} keeps the reason")


def _answered(versions: Versions) -> dict[str, str]:
    """The digests of what is active, and was before, by name."""
    if not versions.file.exists():
        return {}
    now, digests = versions.read(), {}
    for name in (now.active, *now.previous, *([now.canary.bundle] if now.canary else [])):
        with suppress(BundleError):  # gone, or damaged: nothing to go back to
            digests[name] = bundle_digest(versions.path(name))
    return digests


def _unknown(versions: Versions, name: str) -> str | None:
    """Why a rollback is refused: `active.json` knows names alone, and another bundle may have taken this one since."""
    path, log = versions.path(name), versions.root / LOG
    digest = bundle_digest(path)
    # Not `splitlines`, which splits at signs that a reason may hold, too.
    for line in log.read_text(encoding="utf-8").split("\n") if log.exists() else ():
        with suppress(ValueError):  # a line that a kill cut off
            told = json.loads(line)
            # What was only published has not answered.
            own = None if str(told.get("action")).startswith(PUBLISH) else told.get("digest")
            if digest in (own, told.get("answered", {}).get(name)):
                return None
    why = f"it was written over since, or only published, or {log} is not whole"
    return f"{path}: never answered as it is now, {digest[:12]}: {why}"


def _refusal(versions: Versions, name: str, required: Requirement) -> str | None:
    """Why the gate refuses a bundle; None if it does not."""
    bundle = versions.path(name)
    try:
        blessing = valid_blessing(bundle)
    except GateError as error:
        return str(error)
    if blessing.rules != required.rules:
        return (
            f"{bundle}: blessed by the rules {blessing.rules[:12]}, but {versions.root} requires {required.file}, "
            f"{required.rules[:12]}; {AGAIN}"
        )
    # What is better than some bundle need not be better than the one it would replace.
    active = versions.read().active if versions.file.exists() else None
    if active is None and blessing.section == "renewal":
        return f"{bundle}: renews a bundle, but none is active; activate that one first"
    if active in (None, name) or blessing.baseline is None:
        return None
    try:
        now = bundle_digest(versions.path(active))
    except BundleError as error:
        return f"{bundle}: the active bundle, with which it must be compared, is damaged: {error}"
    if blessing.baseline == now:
        return None
    return f"{bundle}: compared with {blessing.baseline[:12]}, but {active}, {now[:12]}, is active; {AGAIN}"


def _requirement(root: Path) -> Requirement | None:
    path = root / GATE
    try:
        return Requirement.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except ValidationError as error:
        lines = [f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors()]
        told = "; ".join(lines)
    except ValueError as error:
        told = f"not valid TOML: {error}"
    words = shlex.join(["towers", "bundles", "gate", "RULES", "--root", str(root)])
    raise DataError(f"{path}: damaged: {told}; `{words}` writes it again")


def _log(root: Path, action: str, **told: Any) -> None:
    now = datetime.now(UTC).isoformat(timespec="seconds")
    line = json.dumps({"time": now, "user": _user(), "action": action, **told}, ensure_ascii=False)
    log = root / LOG
    # A full disk or a kill may have cut off the line before.
    gap = b"\n" if log.exists() and log.read_bytes()[-1:] not in (b"", b"\n") else b""
    with log.open("ab") as file:
        file.write(gap + f"{line}\n".encode())
    flush(log)


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # in a container whose user has no name
        return f"uid {os.getuid()}"


def _given(reason: str, option: str) -> str:
    if not reason.strip():
        raise DataError(f"{option} needs a reason; got {reason!r}")
    return reason


def _refuse_no_root(root: Path) -> None:
    if not root.is_dir():
        raise BundleError(f"{root}: no such directory")
