"""docs/tutorial.md as a user types it: its commands, one after another, in one shell."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import ROOT
from tests.support.processes.running_service import free_port

PAGE = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.long
def test_every_command_of_the_tutorial_works(tmp_path: Path) -> None:
    blocks = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
    assert len(blocks) > 8
    # The environment of this test is on the path in place of the page's; `%1` needs job control.
    commands = "\n".join(["set -em", *blocks[1:]]).replace("8000", str(free_port()))
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    shell = subprocess.Popen(
        ["bash", "-c", commands],
        cwd=tmp_path,
        env=os.environ | {"PATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        said, _ = shell.communicate(timeout=600)
    finally:
        # With job control the service has a group of its own, which the shell's last command ends.
        if shell.poll() is None:
            os.killpg(shell.pid, signal.SIGKILL)
    assert shell.returncode in (0, 128 + signal.SIGTERM), said[-3000:]
    assert '"source":"user"' in said and '"added":1' in said
    assert json.loads((tmp_path / "shop" / "bundles" / "active.json").read_text())["active"] == "first", "rolled back"
    assert (tmp_path / "shop" / "bundles" / "second" / "manifest.json").exists()


def test_the_readme_leads_there() -> None:
    assert "(docs/tutorial.md)" in (ROOT / "README.md").read_text(encoding="utf-8")
