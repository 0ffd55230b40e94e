"""Where the project lies, and the programs that tests start."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
PROCESSES = ROOT / "tests" / "support" / "processes"
