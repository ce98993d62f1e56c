"""The host as its files in /proc and /sys describe it.

`gather` puts it together from `cpus`, `numa`, `nics`, `isolation` (IOMMU, ACS) and `virtualization`; `pci` knows how
far two devices are apart, `textfile` and `cpulist` how the kernel writes.
"""
