"""What notebooks show: tables of an `analysis` and of the `results` of many, and a `summary` in a few lines.

`frame` alone imports pandas.
"""
