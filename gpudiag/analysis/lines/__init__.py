"""Host time by lines of the user's source. Stages of the analysis use it; it uses none of them."""
