"""TensorFlow, as those programs see it that start its processes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import ClassVar

from gpudiag.errors import UsageError
from gpudiag.model.job import MemoryFormat, RunOptions
from gpudiag.training.frameworks.directory_store import STORE_VARIABLE
from gpudiag.training.frameworks.framework import Framework
from gpudiag.training.frameworks.plan import Plan
from gpudiag.training.frameworks.tensorflow.loopback import preload

#: Strategies whose processes or threads find each other over the network.
_SERVING = frozenset({"parameter-server", "multi-worker"})
_STARTER = Path(__file__).parents[1] / "starter.py"

#: TensorFlow's `build_info.py` holds assignments only; importing TensorFlow takes seconds.
_QUESTION = r"""
tensorflow = has("tensorflow")
if tensorflow is not None and tensorflow.submodule_search_locations:
    answer["framework"] = "unknown"
    for name in ("tensorflow", "tensorflow-cpu", "tensorflow-gpu", "tf-nightly"):
        try:
            answer["framework"] = importlib.metadata.version(name)
            break
        except importlib.metadata.PackageNotFoundError:
            pass
    words = text(tensorflow.submodule_search_locations[0], "python/platform/build_info.py")
    if re.search(r"is_cuda_build'?,\s*True", words):
        cuda = re.search(r"cuda_version'?,\s*'([^']+)'", words)
        answer["cuda"] = cuda[1] if cuda else "unknown"
    if not has("keras"):
        answer["lacks"] = "Keras"
"""


class TensorFlow(Framework):
    """One process for all devices of a node, or several that find each other by addresses."""

    name: ClassVar[str] = "tensorflow"
    package: ClassVar[str] = "tensorflow"
    title: ClassVar[str] = "TensorFlow"
    question: ClassVar[str] = _QUESTION
    memory_format: ClassVar[MemoryFormat] = "nhwc"
    cpu_memory_formats: ClassVar[tuple[str, ...]] = ("nhwc",)
    one_process: ClassVar[bool] = True
    trainer: ClassVar[str] = "gpudiag.training.jobs.tensorflow.train:train"
    fault_job: ClassVar[str] = "gpudiag.training.jobs.faults.tensorflow.registry:run"
    fault_kinds: ClassVar[frozenset[str]] = frozenset(("none", "late-loader", "extra-compute", "syncs"))

    def check(self, options: RunOptions) -> None:
        """Workloads, ways of feeding and of exchanging that only PyTorch's jobs have, and several nodes."""
        from gpudiag.training.models.registry import is_own
        from gpudiag.training.models.tensorflow.registry import check_workload
        from gpudiag.training.strategies.registry import tensorflow_strategy

        if not is_own(options.workload):
            check_workload(options.workload)
        if options.data == "zmq":
            raise UsageError("--data zmq feeds PyTorch's processes only", "Use --data loader, a tf.data pipeline.")
        if options.data == "device" and options.strategy and tensorflow_strategy(options.strategy).feeds_itself:
            raise UsageError(
                f"--data device does not go with {options.strategy}, whose workers take batches from the host",
                "Use --data host.",
            )
        if options.prefetch:
            raise UsageError(
                "--prefetch does not apply to --framework tensorflow, which always copies ahead", "Leave it out."
            )
        if given := options.exchange.given():
            option = next(iter(given)).replace("_", "-")
            raise UsageError(f"--{option} does not go with --framework tensorflow", "Leave it out.")
        if options.nodes > 1:
            raise UsageError(
                "--nnodes does not go with --framework tensorflow",
                "Start a program of your own on each node, with TF_CONFIG and gpudiag.profile() in it.",
            )

    def command_line(self, plan: Plan, request: Path) -> list[str]:
        """`python starter.py tensorflow PROCESSES python -m gpudiag.training.jobs RUN_DIR REQUEST`."""
        return [
            sys.executable,
            "-I",
            str(_STARTER),
            self.name,
            str(plan.processes),
            plan.job.python,
            *self.worker(plan, request),
        ]

    def set_environment(self, values: dict[str, str], plan: Plan, private: Path) -> None:
        """Keras's backend, the store through which sessions agree, where servers listen, how many threads are made."""
        values["KERAS_BACKEND"] = "tensorflow"
        values[STORE_VARIABLE] = str(private / "store")
        if sys.platform == "linux" and plan.job.strategy in _SERVING:
            values["LD_PRELOAD"] = preload(private, values.get("LD_PRELOAD"))
        if plan.job.device == "cpu":
            values["CUDA_VISIBLE_DEVICES"] = ""  # TensorFlow would complain of a driver that it does not find
        # Threads of one op, and ops at a time: by default both are as many as the machine has cores, in every process.
        values.setdefault("TF_NUM_INTRAOP_THREADS", str(plan.threads))
        values.setdefault("TF_NUM_INTEROP_THREADS", str(max(2, plan.threads)))
