"""Mixtures of experts: routes recorded and replayed, the routers' own losses, and metrics of both.

Shapes: N rows (n in a microbatch), T padded tokens, M tokens of all rows, L layers with experts, each with one router,
K experts a token, E experts.
"""
