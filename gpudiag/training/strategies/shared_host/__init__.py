"""All-reduce through host memory that the processes of one node share, with the sum formed by their CPUs.

`all_reduce` puts the parts together and describes how they work; the other modules are those parts.
"""
