"""One use case per verb: puts the stages together. Draws nothing."""
