"""How training scales with devices: which points to measure, how they are kept, and what follows from them.

It starts jobs through the pipeline and knows no framework. `session.scale` does it all; every other module turns one
noun into another and can be used on results that were measured elsewhere.
"""
