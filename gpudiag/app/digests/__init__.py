"""Write digests of ranks, on this machine or on a cluster."""
