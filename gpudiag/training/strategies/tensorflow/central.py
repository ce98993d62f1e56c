"""Implement strategies of `tf.distribute` with variables on the CPU: `central-storage` and `parameter-server`."""

from __future__ import annotations

import socket
from typing import Any

from gpudiag.training.strategies.tensorflow_strategy import TensorflowStrategy

#: Servers of this process. The references keep the servers alive until the process ends.
_servers: list[Any] = []


class CentralStorage(TensorflowStrategy):
    """Keep one copy of each variable on the CPU, and sum gradients there.

    The strategy is experimental in TensorFlow, and does not support the assignments with which Keras 3 updates moving
    averages (BatchNormalization). For models with such layers, building the step raises ValueError.
    """

    name = "central-storage"
    summary = "CentralStorageStrategy: variables lie on the CPU, every device reads them there."
    list_order = 50
    through_host = True

    @classmethod
    def make(cls, devices: tuple[str, ...]) -> Any:
        """Make the `CentralStorageStrategy` for this process's devices."""
        import tensorflow as tf

        return tf.distribute.experimental.CentralStorageStrategy(
            compute_devices=list(devices), parameter_device="/device:CPU:0"
        )


class ParameterServer(TensorflowStrategy):
    """Keep the variables in a server on the CPU. Each worker fetches the variables and sends its gradients.

    All GPUs of a process belong to one worker, because TensorFlow cannot divide a process's GPUs between servers. The
    worker sums the gradients of its GPUs and sends the sum. Each CPU device is a worker. Workers run independently.

    TensorFlow's servers listen on every interface without authentication. A library that gpudiag preloads makes the
    servers listen on the loopback address only (`frameworks/tensorflow/loopback.c`). The servers end with the process.
    """

    name = "parameter-server"
    summary = "ParameterServerStrategy: a server on the CPU holds the variables, workers fetch and update them."
    list_order = 60
    through_host = True
    feeds_itself = True

    @classmethod
    def make(cls, devices: tuple[str, ...]) -> Any:
        """Start the servers in threads of this process, and make the `ParameterServerStrategy`."""
        import tensorflow as tf

        counts = {"worker": cls.workers(devices), "ps": 1}
        cluster = tf.train.ClusterSpec(
            {job: [f"127.0.0.1:{_free_port()}" for _ in range(count)] for job, count in counts.items()}
        )
        # Ops of a worker wait for the server. Therefore more ops than devices must be able to run at the same time.
        threads = len(devices) + 2
        for job, count in counts.items():
            gpus = {"device_count": {"GPU": 0}} if job == "ps" else {}
            config = tf.compat.v1.ConfigProto(inter_op_parallelism_threads=threads, **gpus)
            _servers.extend(
                tf.distribute.Server(cluster, job_name=job, task_index=task, config=config) for task in range(count)
            )
        resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(cluster, rpc_layer="grpc")
        return tf.distribute.ParameterServerStrategy(resolver)

    @classmethod
    def workers(cls, devices: tuple[str, ...]) -> int:
        """Return the number of workers: one for all GPUs, or one for each CPU device."""
        return 1 if devices[0].startswith("GPU:") else len(devices)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
