"""Define the workloads in Keras under TensorFlow. `workload` is the interface."""
