"""Read the host's files in /proc and /sys: CPUs, NUMA, NICs, isolation (IOMMU, ACS), virtualization."""
