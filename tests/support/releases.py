"""The releases of a dependency that the project allows."""

import tomllib

from tests.support.paths import ROOT


def allowed(package: str) -> list[str]:
    """The minor releases of `PACKAGE>=1.2,<1.5` in pyproject.toml: 1.2, 1.3 and 1.4."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    (found,) = [each for each in settings["project"]["dependencies"] if each.startswith(f"{package}>=")]
    lowest, beyond = (each.split(".") for each in found.removeprefix(f"{package}>=").split(",<"))
    assert lowest[0] == beyond[0], found
    return [f"{lowest[0]}.{minor}" for minor in range(int(lowest[1]), int(beyond[1]))]
