"""Simulate an analysed step under counterfactual scenarios."""
