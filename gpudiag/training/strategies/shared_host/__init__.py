"""All-reduce through host memory that the processes of one node share, summed by their CPUs; see `all_reduce`."""
