"""Problems from files and data sets."""
