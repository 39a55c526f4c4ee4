"""An algorithm is a row of small parts: the catalog of rows, the parts, and what a recipe may change of them."""
