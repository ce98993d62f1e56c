"""`parameter-server`: ParameterServerStrategy, its servers in threads of this process."""

from __future__ import annotations

import socket
from typing import Any

from gpudiag.training.strategies.tensorflow_strategy import TensorflowStrategy

#: Servers live as long as the process.
_servers: list[Any] = []


class ParameterServer(TensorflowStrategy):
    """Variables lie with one server on the CPU; workers fetch them and send gradients each for itself.

    GPUs of one process all belong to one worker, which adds their gradients up before it sends them: TensorFlow cannot
    divide a process's GPUs between servers in it. CPU devices are one worker each, and do not wait for each other
    within a step.

    TensorFlow's servers would listen on every interface, and ask nobody who they are: gpudiag's launches keep them on
    the loopback address (`frameworks/tensorflow/loopback.py`). They end with the process.
    """

    name = "parameter-server"
    summary = "ParameterServerStrategy: a server on the CPU holds the variables, workers fetch and update them."
    listed = 60
    through_host = True
    feeds_itself = True

    @classmethod
    def make(cls, devices: tuple[str, ...]) -> Any:
        """Make the `tf.distribute.Strategy` for this process's devices."""
        import tensorflow as tf

        workers = cls.workers(devices)
        counts = (("worker", workers), ("ps", 1))
        cluster = tf.train.ClusterSpec({job: [f"127.0.0.1:{_free_port()}" for _ in range(n)] for job, n in counts})
        config = tf.compat.v1.ConfigProto
        # A worker waits for the server within its ops: more of them must fit than there are devices.
        of_worker = config(inter_op_parallelism_threads=len(devices) + 2)
        of_server = config(inter_op_parallelism_threads=len(devices) + 2, device_count={"GPU": 0})
        for job, count, settings in (("worker", workers, of_worker), ("ps", 1, of_server)):
            for task in range(count):
                _servers.append(tf.distribute.Server(cluster, job_name=job, task_index=task, config=settings))  # noqa: PERF401
        resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(cluster, rpc_layer="grpc")
        return tf.distribute.ParameterServerStrategy(resolver)

    @classmethod
    def workers(cls, devices: tuple[str, ...]) -> int:
        """One for all GPUs, or one for each CPU device."""
        return 1 if devices[0].startswith("GPU:") else len(devices)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


STRATEGY = ParameterServer
