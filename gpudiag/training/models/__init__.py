"""Define the workloads. `registry` lists workloads without importing a framework; the other folders build them."""
