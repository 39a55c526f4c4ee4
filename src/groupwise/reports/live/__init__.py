"""A page that is fresh while a run goes on."""
