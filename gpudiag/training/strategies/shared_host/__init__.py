"""All-reduce gradients through host memory that the processes of one node share. `all_reduce` explains the method."""
