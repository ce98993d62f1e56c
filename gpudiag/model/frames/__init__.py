"""Tables for notebooks and CSV files: of an `analysis`, of the `results` of many. `frame` alone imports pandas."""
