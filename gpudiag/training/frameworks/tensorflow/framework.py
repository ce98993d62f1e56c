"""Describe TensorFlow for programs that start training processes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import ClassVar

from gpudiag.errors import FrameworkMissingError, UsageError
from gpudiag.model.job import MemoryFormat, RunOptions
from gpudiag.training.frameworks.framework import Framework, Plan
from gpudiag.training.session.agreement import STORE_VARIABLE

#: Strategies whose processes or threads communicate through TensorFlow's servers.
_SERVING = frozenset({"parameter-server", "multi-worker"})
_STARTER = Path(__file__).parents[1] / "starter.py"
#: Source of a library that makes TensorFlow's servers listen on the loopback address only.
_LOOPBACK = Path(__file__).with_name("loopback.c")
#: Time limit of the compiler in seconds.
_COMPILE_S = 60

#: Value of `question`. The source reads the file `build_info.py`, because importing TensorFlow takes seconds.
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
    """TensorFlow with one process for all devices of a node, or with several processes that `TF_CONFIG` lists."""

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
        """Raise UsageError for several nodes, and for workloads and options that only PyTorch's jobs support."""
        from gpudiag.training.models.registry import check_keras_workload, is_own
        from gpudiag.training.strategies.registry import tensorflow_strategy

        if not is_own(options.workload):
            check_keras_workload(options.workload)
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
        """Return `python starter.py tensorflow PROCESSES python -m gpudiag.training.jobs RUN_DIR REQUEST`."""
        start = [sys.executable, "-I", str(_STARTER), self.name, str(plan.processes)]
        return [*start, plan.job.python, *self.worker(plan, request)]

    def set_environment(self, values: dict[str, str], plan: Plan, private: Path) -> None:
        """Set Keras's backend, the sessions' key-value store, the address of servers, and numbers of threads.

        `Framework.set_environment` describes the arguments.
        """
        values["KERAS_BACKEND"] = "tensorflow"
        values[STORE_VARIABLE] = str(private / "store")
        if sys.platform == "linux" and plan.job.strategy in _SERVING:
            values["LD_PRELOAD"] = preload(private, values.get("LD_PRELOAD"))
        if plan.job.device == "cpu":
            values["CUDA_VISIBLE_DEVICES"] = ""  # otherwise TensorFlow warns of a missing driver
        # Limit the threads within an op and the ops that run at the same time. By default both are the number of cores.
        values.setdefault("TF_NUM_INTRAOP_THREADS", str(plan.threads))
        values.setdefault("TF_NUM_INTEROP_THREADS", str(max(2, plan.threads)))


def preload(directory: Path, inherited: str | None) -> str:
    """Compile `loopback.c` into `directory`, and return the LD_PRELOAD that loads the result before `inherited`.

    Raise FrameworkMissingError if there is no compiler, or if the compilation fails.
    """
    compiler = shutil.which(os.environ.get("CC") or "cc") or shutil.which("gcc") or shutil.which("clang")
    target = directory / "loopback.so"
    try:
        if compiler is None:
            raise FileNotFoundError("there is no C compiler")
        command = [compiler, "-O1", "-shared", "-fPIC", str(_LOOPBACK), "-o", str(target), "-ldl"]
        subprocess.run(command, capture_output=True, timeout=_COMPILE_S, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise FrameworkMissingError(
            f"TensorFlow's servers would listen on every network interface ({error})",
            "Install a C compiler (cc), with which gpudiag keeps them on this machine, or choose another strategy.",
        ) from error
    return " ".join(filter(None, (str(target), inherited)))
