"""How training scales with devices: what follows from measured points, wherever they were measured."""
