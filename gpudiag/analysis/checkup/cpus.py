"""Check the number of CPU cores per rank, and whether the cores are on the GPUs' NUMA nodes."""

from __future__ import annotations

from gpudiag.analysis.checkup.setting import JobSetting
from gpudiag.model.checkup import Check
from gpudiag.model.facts import number_list, parse_cpu_list

#: A rank's training thread and its backward thread (PyTorch's autograd engine) run at once, beside DataLoader workers.
_LEAST_CPUS_PER_RANK = 2


def check_cores(setting: JobSetting) -> Check:
    """Check how many CPUs affinity and control groups leave for each rank."""
    code, host, ranks = "cpu-cores", setting.host, setting.ranks
    quota, allowed = setting.surroundings.cpu_quota, setting.surroundings.allowed_cpus
    usable = host.usable_cpus
    if usable is None:
        reason = host.reasons.get("threads", "the kernel does not show the affinity")
        return Check(code=code, status="unknown", title="The number of usable CPUs is unknown.", not_seen=reason)
    parts = [f"{host.threads} CPUs" if host.threads is not None else "CPUs"]
    if allowed:
        parts.append(f"this process may use {allowed}")
    if quota is not None:
        parts.append(f"a control group allows {quota:g} CPUs of time")
    seen = f"{', '.join(parts)}: {usable / ranks:.3g} per rank with {ranks} ranks"
    if usable >= _LEAST_CPUS_PER_RANK * ranks:
        return Check(code=code, status="ok", title=f"{seen}.")
    title = f"{seen}. A rank keeps {_LEAST_CPUS_PER_RANK} busy without its DataLoader workers."
    return Check(code=code, status="warning", title=title, fix=_more_cores(setting, quota))


def _more_cores(setting: JobSetting, quota: float | None) -> tuple[str, ...]:
    """Return the steps that give ranks more CPUs; `quota` is the control group's limit in CPUs."""
    environment = setting.host.environment
    wanted = 2 * _LEAST_CPUS_PER_RANK * setting.ranks  # twice the minimum, for DataLoader workers
    steps = []
    if "SLURM_JOB_ID" in environment:
        steps.append("srun --cpus-per-task=8 …   # and --cpu-bind=none if ranks share a task")
    if quota is not None and setting.in_container:
        steps.append(f"docker run --cpus={wanted} …   # Kubernetes: limits.cpu")
    threads = setting.host.threads
    if quota is None and threads is not None and threads > (setting.host.usable_cpus or 0):
        steps.append(f"taskset --cpu-list 0-{threads - 1} …   # if the affinity was not set on purpose")
    if not steps:
        steps.append(
            f"Run fewer ranks (--ranks {max(1, (setting.host.usable_cpus or 1) // 2)}) or take a larger machine."
        )
    return tuple(steps)


def check_numa(setting: JobSetting) -> Check:
    """Compare each GPU's NUMA node with the CPUs on which this process may run."""
    code, host = "numa-affinity", setting.host
    if not setting.gpus:
        return Check(code=code, status="not-needed", title="There is no GPU.")
    nodes = {node.index: _numbers(node.cpus) for node in host.numa}
    if len(nodes) < 2:
        if host.numa:
            return Check(code=code, status="not-needed", title="The machine has one NUMA node.")
        reason = host.reasons.get("numa", "the kernel shows no NUMA nodes")
        return Check(code=code, status="unknown", title="NUMA nodes are unknown.", not_seen=reason)
    node_of = {gpu.index: gpu.numa_node for gpu in setting.gpus if gpu.numa_node is not None}
    allowed_text = setting.surroundings.allowed_cpus
    if not node_of or not allowed_text:
        what = "the NUMA nodes of the GPUs" if not node_of else "the affinity of this process"
        return Check(code=code, status="unknown", title="GPUs and CPUs cannot be compared.", not_seen=what)
    allowed = _numbers(allowed_text)
    far = sorted(index for index, node in node_of.items() if not allowed & nodes.get(node, set()))
    places = "; ".join(
        f"node {node}: GPUs {number_list(i for i, n in node_of.items() if n == node)}"
        for node in sorted(set(node_of.values()))
    )
    not_seen = None if len(node_of) == len(setting.gpus) else "the NUMA nodes of some GPUs"
    if far:
        here = sorted(index for index, cpus in nodes.items() if allowed & cpus)
        title = (
            f"GPUs {number_list(far)} are on other NUMA nodes than this process (node {number_list(here)}); {places}."
        )
        node = node_of[far[0]]
        fix = (f"numactl --cpunodebind={node} --membind={node} python …   # for the ranks of GPUs {number_list(far)}",)
        return Check(code=code, status="warning", title=title, fix=fix, not_seen=not_seen)
    title = f"This process may run beside every GPU; {places}."
    return Check(code=code, status="ok", title=title, not_seen=not_seen)


def _numbers(text: str) -> set[int]:
    """Return the numbers of a CPU list; empty if `text` is no CPU list."""
    try:
        return set(parse_cpu_list(text))
    except ValueError:
        return set()
