"""Print the lowest versions that pyproject.toml allows, as constraints for pip: `msgspec>=0.19` → `msgspec==0.19.*`."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

_NAME_AND_BOUND = re.compile(r"([\w-]+)>=([\d.]+)")

project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
for requirement in project["dependencies"]:
    match = _NAME_AND_BOUND.match(requirement)
    if match is None:
        raise SystemExit(f"{requirement} has no lower bound")
    print(f"{match[1]}=={match[2]}.*")  # noqa: T201
