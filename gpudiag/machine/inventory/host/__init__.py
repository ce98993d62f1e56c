"""The host as its files in /proc and /sys describe it: CPUs, NUMA, NICs, isolation (IOMMU, ACS), virtualization."""
