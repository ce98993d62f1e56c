"""`parameter-server`: ParameterServerStrategy, its servers in threads of this process."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any

import tensorflow as tf

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Servers live as long as the process.
_servers: list[Any] = []


def make(devices: Sequence[str]) -> Any:
    """Variables lie with one server on the CPU; workers fetch them and send gradients each for itself.

    GPUs of one process all belong to one worker, which adds their gradients up before it sends them: TensorFlow cannot
    divide a process's GPUs between servers in it. CPU devices are one worker each, and do not wait for each other
    within a step.

    TensorFlow's servers listen on every interface and ask nobody who they are; they end with the process.
    """
    workers = number_of_workers(devices)
    cluster = tf.train.ClusterSpec(
        {job: [f"127.0.0.1:{_free_port()}" for _ in range(count)] for job, count in (("worker", workers), ("ps", 1))}
    )
    config = tf.compat.v1.ConfigProto
    # A worker waits for the server within its ops: more of them must fit than there are devices.
    of_worker = config(inter_op_parallelism_threads=len(devices) + 2)
    of_server = config(inter_op_parallelism_threads=len(devices) + 2, device_count={"GPU": 0})
    for job, count, settings in (("worker", workers, of_worker), ("ps", 1, of_server)):
        for task in range(count):
            _servers.append(tf.distribute.Server(cluster, job_name=job, task_index=task, config=settings))  # noqa: PERF401
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(cluster, rpc_layer="grpc")
    return tf.distribute.ParameterServerStrategy(resolver)


def number_of_workers(devices: Sequence[str]) -> int:
    """One for all GPUs, or one for each CPU device."""
    return 1 if devices[0].startswith("GPU:") else len(devices)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
