"""A machine's facts, drawn: `topology` what it has, with `links`; `bandwidth` what was measured.

`tables` and `words` are theirs and the pages'.
"""
