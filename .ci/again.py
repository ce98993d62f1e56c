"""Run the few tests that failed among thousands once more, with the machine to themselves, and hold them to that.

    python .ci/again.py --most 3 --rate "why this many"

A thousand tests start real programs, which share two cores with each other and with whatever else runs there. Whether
one of them was disturbed or is wrong shows when it runs alone: what fails there fails. More failures than `--most` are
no disturbance. Which tests they were is printed, and kept as `build/ci/again.json`.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
LAST_FAILED = Path(".pytest_cache") / "v" / "cache" / "lastfailed"
#: What pytest-xdist appends to the name of a test that belongs to a group, by which nobody finds that test.
GROUP = re.compile(r"@[^@\]]*$")


def main(words: list[str] | None = None, root: Path = ROOT) -> int:
    """Return 0 where at least one test and no more than were allowed had failed, and all of them pass alone."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--most", type=int, required=True, help="with more failures than this none is run again")
    parser.add_argument("--rate", required=True, help="how often this is expected, and where that is from")
    asked = parser.parse_args(words)
    kept = root / LAST_FAILED
    names: list[str] = list(json.loads(kept.read_text(encoding="utf-8"))) if kept.exists() else []
    failed = sorted({GROUP.sub("", name) for name in names})
    passed = False
    if 0 < len(failed) <= asked.most:
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *failed]
        passed = subprocess.run(command, cwd=root, check=False).returncode == 0
    record = {"failed": failed, "most": asked.most, "rate": asked.rate, "passed_alone": passed}
    (root / "build" / "ci").mkdir(parents=True, exist_ok=True)
    (root / "build" / "ci" / "again.json").write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    for test in failed[:20]:
        print(f"failed beside others, {'passed' if passed else 'not passed'} alone: {test}")  # noqa: T201
    print(f"{len(failed)} failed; at most {asked.most} are run again ({asked.rate})")  # noqa: T201
    return int(not passed)


if __name__ == "__main__":
    sys.exit(main())
