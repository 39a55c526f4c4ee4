"""Problems of reasoning_gym."""
