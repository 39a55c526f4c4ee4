"""Problems made by reasoning_gym."""
