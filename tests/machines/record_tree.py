"""Record the files of /proc, /sys and /etc that `gpudiag doctor` reads, as JSON with path → text.

    python tests/machines/record_tree.py NAME

Left out: the host's name, identifiers in the names of control groups, kernel options other than those of the IOMMU, the
suffix of the kernel's version, and all properties of CPUs except model name and flags.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

HERE = Path(__file__).parent / "trees"
PATTERNS = (
    "proc/cpuinfo",
    "proc/meminfo",
    "proc/cmdline",
    "proc/sys/kernel/osrelease",
    "proc/self/cgroup",
    "proc/self/limits",
    "proc/self/status",
    "proc/driver/nvidia/params",
    "etc/os-release",
    "sys/class/iommu/*/type",
    "sys/devices/system/cpu/online",
    "sys/devices/system/cpu/cpu[0-9]*/topology/physical_package_id",
    "sys/devices/system/cpu/cpu[0-9]*/topology/core_id",
    "sys/devices/system/node/node[0-9]*/cpulist",
    "sys/devices/system/node/node[0-9]*/meminfo",
)
#: File → pattern of the lines to keep; all lines of other files are kept.
KEPT = {
    "proc/cpuinfo": r"^(processor|model name|flags)\b",
    "proc/meminfo": r"^MemTotal",
    "proc/self/status": r"^(Cpus_allowed_list|CapEff|NoNewPrivs|Seccomp)\b",
    "proc/self/limits": r"^(Limit|Max locked|Max open)",
    "etc/os-release": r"^PRETTY_NAME",
}


def record(root: Path) -> dict[str, str]:
    """Return path → text of each file below `root` that exists."""
    files = {}
    for pattern in PATTERNS:
        for path in sorted(root.glob(pattern)):
            name = str(path.relative_to(root))
            lines = path.read_text(errors="replace").splitlines()
            wanted = re.compile(KEPT.get(name, ""))
            text = "\n".join(line for line in lines if wanted.search(line))
            if name == "proc/cmdline":
                text = " ".join(word for word in text.split() if "iommu" in word)
            if name == "proc/self/cgroup":
                text = re.sub(r":/\S+", ":/job", text)
            if name == "proc/sys/kernel/osrelease":
                text = text.partition("-")[0]
            files[name] = f"{text}\n"
    return files


if __name__ == "__main__":
    HERE.mkdir(exist_ok=True)
    target = HERE / f"{sys.argv[1]}.json"
    target.write_text(json.dumps(record(Path("/")), indent=1) + "\n", encoding="utf-8")
