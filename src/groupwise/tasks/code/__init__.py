"""Problems whose answers are programs."""
