"""Mixtures of experts: routes recorded and replayed, the routers' own losses, and metrics of both."""
