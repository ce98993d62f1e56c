"""Run the few failed tests among thousands again, alone on the machine, and require that they pass.

    python .ci/again.py --most 3 --rate "why this many"

The tests start a thousand real programs, which share two cores with each other and with other load. A test that failed
because of that load passes when it runs alone; a test that fails alone has a real fault. If there are more failures
than `--most`, load does not explain them. The failed tests are printed, and saved in `build/ci/again.json`.
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
#: pytest-xdist appends this suffix to the id of a grouped test, and pytest does not accept ids with it.
GROUP = re.compile(r"@[^@\]]*$")


def main(words: list[str] | None = None, root: Path = ROOT) -> int:
    """Return 0 if between one and `--most` tests had failed, and all of them pass alone; else return 1.

    `words` are the arguments; None for the command line. `root` is the repository.
    """
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
